"""Runs the proof: tuning, then the cases; every finished trial is kept at once."""

from __future__ import annotations

import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll_bench.parity import cases, plot, report
from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.store import TUNING, Row, Store, StoreError
from atoll_bench.parity.trials import Trial
from atoll_bench.parity.worker import run_all
from atoll_runtime.data import DataError, Reader, write_stdlib
from atoll_runtime.model.presets import resolve
from atoll_runtime.simulate.training.setting import STREAMS, TOGETHER

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
    """What chose the stages, for the command in a row."""
    data: str = ""
    """URI of a data set; empty: the standard library's text."""


def prove(request: Request, say: Callable[[str], None]) -> Iterator[Row]:
    """Each finished trial's row; table and plot are written at the end.

    Raises:
        StoreError: the file of results is not one, or those in it are of another data set.
        Killed: a trial's process; what was finished is kept.
    """
    store = Store(request.folder / f"{NAME}.json")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atoll-parity-") as scratch:
        data = request.data or f"file://{scratch}/data"
        source = request.data or write_stdlib(data).source
        _refuse_others(store, source)
        say(f"results go to {request.folder}")
        flags = (request.flag, f"--data {shlex.quote(request.data)}" if request.data else "")
        chosen = "".join(f"{flag} " for flag in flags if flag)
        for wanted in _phases(request, store):
            left = [trial for trial in wanted if not request.resume or store.find(trial) is None]
            say(f"{len(left)} of {len(wanted)} trials to run, {request.jobs} at a time")
            spent = time.monotonic() - began
            seconds = None if request.seconds is None else max(0.0, request.seconds - spent)
            for trial, found in run_all(left, data, f"{scratch}/cache", request.jobs, seconds):
                row = store.add(trial, found | {"data": source, "command": command(trial, chosen)})
                end = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
                say(f"{report.name(trial)}: {end}")
                yield row
    write(store.rows, request.folder)


def look_into(data: str, stages: Sequence[cases.Stage]) -> None:
    """Opens the data set of all trials once, before the first of them takes a process.

    Raises:
        DataError: there is none, it has not what every trial reads, or tokens that a model has not.
        StoreError: of the bucket, which does not answer.
    """
    for name in dict.fromkeys(stage.size for stage in stages):
        size = SIZES[name]
        most = resolve(size.model).vocabulary
        for split, least in (("train", STREAMS), ("heldout", TOGETHER)):
            reader = Reader(data, split, size.length)
            if reader.catalogue.vocabulary > most:
                raise DataError(
                    f"{data}: vocabulary: {reader.catalogue.vocabulary}, and {name} has {most}; data of {most} or less "
                    "is wanted, as `atoll data import` makes without --tokenizer"
                )
            if reader.examples < least:
                raise DataError(
                    f"{data}: splits.{split}: {reader.examples} examples of {size.length} tokens, which {name} reads; "
                    f"{least} or more are wanted"
                )


def _refuse_others(store: Store, source: str) -> None:
    """Losses on other text than this run's would be resumed, tuned by and held against as its own."""
    for row in store.rows:
        if _text(row.get("data")) != _text(source):
            raise StoreError(
                f"{store.path}: has results on the data {row.get('data')!r}, and this run's is {source!r}; another "
                "--out, or the --data of those results, is wanted"
            )


def _text(source: object) -> str:
    """One for all data sets that may stand in one table: a patch of Python changes little of its library's text."""
    return re.sub(r"^(standard library of Python \d+\.\d+)\.\S+$", r"\1", str(source).rstrip("/"))


def write(rows: Sequence[Row], folder: Path) -> None:
    """Table and plot of finished trials."""
    (folder / f"{NAME}.md").write_text(report.markdown(rows, f"{COMMAND} --resume"))
    plot.draw(rows, folder / f"{NAME}.png")


def command(trial: Trial, flags: str = "") -> str:
    """What runs a trial again, among others of its case; `flags`: what chose stages and data, a blank after each."""
    case = "" if trial.case == TUNING else f" --case {trial.case}"
    return f"{COMMAND} --json {flags}--size {trial.size}{case}"


def _phases(request: Request, store: Store) -> Iterator[list[Trial]]:
    """Trials that may run at the same time: of each stage its tuning, which the others wait for, and its cases."""
    rate = cases.best_rate(store)  # of what is in the store by the time of each phase
    for stage in request.stages:
        if set(stage.cases) & set(request.cases):
            yield cases.tuning([stage], request.stages)
            yield cases.trials([stage], request.cases, rate)
