"""Runs the proof: tuning, then the cases; every finished trial is kept at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll_bench.parity import cases, report
from atoll_bench.parity.store import TUNING, Row, Store
from atoll_bench.parity.trials import Trial
from atoll_bench.parity.worker import run_all
from atoll_cli.errors import CommandError
from atoll_runtime.data import write_stdlib

NAME = "parity"
COMMAND = "atoll bench parity"


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    stages: tuple[cases.Stage, ...]
    cases: str
    """Letters."""
    folder: Path
    """Of the results."""
    jobs: int
    """Trials at a time, a core each."""
    resume: bool = False
    """Finished trials are not run again."""
    flag: str = ""
    """What chose the stages, for the command in a row."""


def prove(request: Request, say: Callable[[str], None]) -> Iterator[Row]:
    """Each finished trial's row; the table is written at the end.

    Raises:
        CommandError: the file of results is not one, or those in it are of another text, or a trial was killed.
    """
    store = Store(request.folder / f"{NAME}.json")
    with tempfile.TemporaryDirectory(prefix="atoll-parity-") as scratch:
        data = f"file://{scratch}/data"
        source = write_stdlib(data).source
        for row in store.rows:
            if _text(row["data"]) != _text(source):
                raise CommandError(
                    f"{store.path}: has results on the {row['data']}, and this is the {source}; another --out is wanted"
                )
        say(f"results go to {request.folder}")
        for wanted in _phases(request, store):
            left = [trial for trial in wanted if not request.resume or store.find(trial) is None]
            say(f"{len(left)} of {len(wanted)} trials to run, {request.jobs} at a time")
            for trial, found in run_all(left, data, f"{scratch}/cache", request.jobs):
                row = store.add(trial, found | {"data": source, "command": command(trial, request.flag)})
                end = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
                say(f"{report.name(trial)}: {end}")
                yield row
    table = request.folder / f"{NAME}.md"
    table.write_text(report.markdown(store.rows, f"{COMMAND} --resume"))
    say(f"the table is in {table}")


def _text(source: str) -> str:
    """Names the text: a patch of Python changes little of its library's."""
    return source.rpartition(".")[0]


def command(trial: Trial, flag: str) -> str:
    """What runs a trial again, among others of its case."""
    words = [COMMAND, "--json", *([flag] if flag else []), f"--size {trial.size}"]
    return " ".join([*words, *([] if trial.case == TUNING else [f"--case {trial.case}"])])


def _phases(request: Request, store: Store) -> Iterator[list[Trial]]:
    """Trials that may run at the same time: of each stage its tuning, which the others wait for, and its cases."""
    rate = cases.best_rate(store)  # of what is in the store by the time of each phase
    for stage in request.stages:
        if set(stage.cases) & set(request.cases):
            yield cases.tuning([stage], request.stages)
            yield cases.trials([stage], request.cases, rate)
