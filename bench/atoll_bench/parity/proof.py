"""Runs the proof: tuning, then the cases. Every finished trial is stored immediately."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from atoll_bench.cores import usable
from atoll_bench.figures import say
from atoll_bench.parity import cases, report
from atoll_bench.parity.store import TUNING, Row, Store
from atoll_bench.parity.trials import Trial
from atoll_bench.parity.worker import run_all
from atoll_cli.errors import CommandError, UsageError
from atoll_runtime.data import write_stdlib

NAME = "parity"
COMMAND = "atoll bench parity"


def measure(
    size: str | None, case: Sequence[str], out: str | None, resume: bool, reduced: bool, device: bool
) -> Iterator[Row]:
    """Yields each finished trial's row. Writes the table at the end. See `atoll bench parity --help` for the
    options. Raises `UsageError`: the options choose no trial; `CommandError`: the file of results is invalid, or has
    results on another text, or a trial was killed."""
    if device and reduced:
        raise UsageError("--device: not with --reduced, which has a size of its own")
    stages = cases.stages(size, reduced=reduced, device=device)
    letters = "".join(case)
    if not set(letters) & {letter for stage in stages for letter in stage.cases}:
        raise UsageError(f"--size {size!r}, --case {','.join(letters)!r}: there is no such trial")
    folder = Path(out or ("/tmp/parity" if reduced else "docs/results"))
    folder.mkdir(parents=True, exist_ok=True)
    jobs = 1 if device else len(usable())
    flag = " --reduced" if reduced else " --device" if device else ""
    store = Store(folder / f"{NAME}.json")
    with tempfile.TemporaryDirectory(prefix="atoll-parity-") as scratch:
        data = f"file://{scratch}/data"
        source = write_stdlib(data).source
        for row in store.rows:
            if _text(row["data"]) != _text(source):
                raise CommandError(
                    f"{store.path}: has results on the {row['data']}, and this is the {source}; another --out is wanted"
                )
        say(f"results go to {folder}")
        for wanted in _phases(stages, letters, store):
            left = [trial for trial in wanted if not resume or store.find(trial) is None]
            say(f"{len(left)} of {len(wanted)} trials to run, {jobs} at a time")
            for trial, found in run_all(left, data, f"{scratch}/cache", jobs):
                row = store.add(trial, found | {"data": source, "command": _again(trial, flag)})
                end = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
                say(f"{report.name(trial)}: {end}")
                yield row
    table = folder / f"{NAME}.md"
    table.write_text(report.markdown(store.rows, f"{COMMAND} --resume"))
    say(f"the table is in {table}")


def _text(source: str) -> str:
    """Returns the source without Python's patch number: a patch release changes little of the library's text."""
    return source.rpartition(".")[0]


def _again(trial: Trial, flag: str) -> str:
    """Returns the command that runs a trial again, among others of its case."""
    case = "" if trial.case == TUNING else f" --case {trial.case}"
    return f"{COMMAND} --json{flag} --size {trial.size}{case}"


def _phases(stages: Sequence[cases.Stage], letters: str, store: Store) -> Iterator[list[Trial]]:
    """Yields groups of trials that may run at the same time: for each stage its tuning, and after that its cases."""
    rate = cases.best_rate(store)  # reads what is in the store at the time of each phase
    for stage in stages:
        if set(stage.cases) & set(letters):
            yield cases.tuning(stage, stages)
            yield cases.trials(stage, letters, rate)
