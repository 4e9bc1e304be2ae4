"""Runs the proof: tuning, then the cases; every finished trial is kept at once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atoll_bench.parity import cases, plot, report
from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.store import TUNING, Row, Store
from atoll_bench.parity.trials import Trial
from atoll_bench.parity.worker import run_all
from atoll_runtime.data import Reader, write_stdlib

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
    seconds: float | None = None
    """After which no trial is begun."""
    resume: bool = False
    """Finished trials are not run again."""
    flag: str = ""
    """What chose the stages, for the command in a row; with a blank at its end."""
    data: str = ""
    """URI of a data set; empty: the standard library's text."""
    sweep: bool = False
    """The outer step's knobs in the place of the cases, for each size and its second budget."""


def prove(request: Request, say: Callable[[str], None]) -> Iterator[Row]:
    """Each finished trial's row; table and plot are written at the end.

    Raises:
        StoreError: the file of results is not one.
    """
    store = Store(request.folder / f"{NAME}.json")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atoll-parity-") as scratch:
        data = request.data or f"file://{scratch}/data"
        source = request.data or write_stdlib(data).source
        for phase in _phases(request):
            wanted = phase(store)
            left = [trial for trial in wanted if not request.resume or store.find(trial) is None]
            say(f"{len(left)} of {len(wanted)} trials to run, {request.jobs} at a time")
            spent = time.monotonic() - began
            seconds = None if request.seconds is None else max(0.0, request.seconds - spent)
            for trial, found in run_all(left, data, f"{scratch}/cache", request.jobs, seconds):
                row = store.add(trial, found | {"data": source, "command": command(trial, request.flag)})
                end = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
                say(f"{report.label(row)} {trial.size} {trial.steps} steps seed {trial.seed}: {end}")
                yield row
    write(store.rows, request.folder)


def look_into(data: str, stages: Sequence[cases.Stage]) -> None:
    """Opens the data set of all trials once, before the first of them takes a process.

    Raises:
        DataError: there is none, or it has not what every trial reads.
        StoreError: of the bucket, which does not answer.
    """
    for length in sorted({SIZES[stage.size].length for stage in stages}):
        for split in ("train", "heldout"):
            Reader(data, split, length)


def write(rows: Sequence[Row], folder: Path) -> None:
    """Table and plot of finished trials."""
    (folder / f"{NAME}.md").write_text(report.markdown(rows, f"{COMMAND} --resume"))
    plot.draw(rows, folder / f"{NAME}.png")


def command(trial: Trial, flag: str = "") -> str:
    """What runs a trial again, among others of its case."""
    case = "" if trial.case in TUNING else f" --case {trial.case}"
    sweep = " --sweep" if trial.case == "sweep" else ""
    return f"{COMMAND} --json {flag}--size {trial.size}{case}{sweep}"


def _phases(request: Request) -> Iterator[Callable[[Store], list[Trial]]]:
    """Trials that may run at the same time: of each stage its tuning, which the others wait for, and its cases."""
    if request.sweep:
        yield lambda _: cases.tuning(request.stages)
        yield lambda store: cases.swept(request.stages, cases.best_rate(store))
        return
    for stage in request.stages:
        if set(stage.cases) & set(request.cases):
            yield partial(_tuning, request.stages, stage)
            yield partial(_cases, stage, request.cases)


def _tuning(stages: Sequence[cases.Stage], stage: cases.Stage, _: Store) -> list[Trial]:
    wanted = {(trial.method, trial.learners) for trial in cases.tuning((stage,))}
    every = cases.tuning(stages)
    return [each for each in every if each.size == stage.size and (each.method, each.learners) in wanted]


def _cases(stage: cases.Stage, letters: str, store: Store) -> list[Trial]:
    return cases.trials((stage,), letters, cases.best_rate(store))
