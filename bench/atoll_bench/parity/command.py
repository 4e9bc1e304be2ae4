"""`atoll bench parity`: decoupled training against data-parallel training."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.uris import of_bucket
from atoll_cli.values import count, plain

if TYPE_CHECKING:
    from atoll_bench.parity.cases import Stage

RESULTS = "docs/results"
REDUCED_RESULTS = "/tmp/parity"
"""Never those of the whole table."""
LETTERS = "abcdef"
FLAGS = {
    "json": "one JSON line a trial",
    "resume": "leave out what is in the results already",
    "reduced": "a small table in under five minutes",
    "device": "the sizes for an accelerator, a trial at a time",
}
VALUES = {
    "size": (
        "NAME",
        "one size alone, also 1m or, with --device, 350m, 1b or moe-125m; default: all of the plan",
    ),
    "case": ("C,…", "default a,b,c,d,e,f"),
    "hours": ("N", "begin no trial after so long; default: no limit"),
    "data": ("URI", "default: this Python's standard library"),
    "jobs": ("N", "trials at a time, a core each; default: all cores"),
    "out": ("FOLDER", f"default {RESULTS}, of --reduced {REDUCED_RESULTS}"),
}
"""Options with a value: its name, and what it is."""


def add_options(parity: argparse.ArgumentParser) -> None:
    """The options of the proof."""
    for name, what in FLAGS.items():
        parity.add_argument(f"--{name}", action="store_true", help=what)
    for name, (value, what) in VALUES.items():
        parity.add_argument(f"--{name}", metavar=value, help=what)


def run(options: argparse.Namespace) -> None:
    """Prints each trial when it is finished.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the results cannot be read or are of other data, or a trial was killed.
    """
    from atoll_bench.cores import usable
    from atoll_bench.parity import cases, proof
    from atoll_bench.parity.store import StoreError
    from atoll_bench.parity.worker import Killed

    _refuse_together(options)
    chosen = cases.stages(options.size, options.reduced, options.device)
    if not chosen:
        every = cases.sizes(options.reduced, options.device)
        raise UsageError(f"--size {options.size!r}: one of {', '.join(every)} is wanted")
    letters = _letters(options.case, "".join(stage.cases for stage in chosen))
    jobs = 1 if options.device else len(usable())
    if options.jobs is not None:
        jobs = count("--jobs", options.jobs, most=1024)
    hours = None if options.hours is None else plain("--hours", options.hours, 0.001, 1000)
    if options.data is not None:
        _look_into(of_bucket("--data", options.data), chosen)
    request = proof.Request(
        stages=chosen,
        cases=letters,
        folder=_folder(
            options.out if options.out is not None else REDUCED_RESULTS if options.reduced else RESULTS
        ),
        jobs=jobs,
        seconds=None if hours is None else 3600 * hours,
        resume=options.resume,
        flag="--reduced" if options.reduced else "--device" if options.device else "",
        data=options.data or "",
    )
    try:
        for row in proof.prove(request, lambda text: print(text, file=sys.stderr, flush=True)):
            if options.json:
                print(json.dumps(row), flush=True)
    except (StoreError, Killed) as error:
        raise CommandError(str(error)) from error
    if not options.json:
        print((request.folder / f"{proof.NAME}.md").read_text(), end="")


def _look_into(data: str, stages: Sequence[Stage]) -> None:
    """Tells of a data set that cannot be used in one line: each trial's process would in a traceback."""
    from atoll_bench.parity.proof import look_into
    from atoll_runtime.data import DataError
    from atoll_runtime.payloads import StoreError

    try:
        look_into(data, stages)
    except DataError as error:
        raise UsageError(f"--data: {error}") from error
    except StoreError as error:
        raise CommandError(f"--data: {error}") from error


def _letters(text: str | None, there: str) -> str:
    """The cases that are asked for; `there`: those of the sizes that were chosen."""
    if text is None:
        return LETTERS
    letters = text.replace(",", "")
    wanted = ",".join(letter for letter in LETTERS if letter in there)
    if not letters or not set(letters) <= set(there):
        raise UsageError(f"--case {text!r}: of {wanted} is wanted")
    return letters


def _refuse_together(options: argparse.Namespace) -> None:
    """What would do nothing beside another option."""
    if options.device and options.reduced:
        raise UsageError("--device: not with --reduced, which has a size of its own")


def _folder(text: str) -> Path:
    """Made where it is not there, and tried before the first trial has taken its hours."""
    if not text:
        raise UsageError("--out '': a folder is wanted")
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=text):
            return Path(text)
    except OSError as error:
        raise UsageError(f"--out {text!r}: cannot be written: {error.strerror or error}") from error
