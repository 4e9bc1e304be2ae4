"""`atoll bench parity`: decoupled training against data-parallel training."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from atoll_cli.errors import CommandError, UsageError, lacking
from atoll_cli.uris import of_bucket
from atoll_cli.values import count, plain

RESULTS = "docs/results"


def add_options(parity: argparse.ArgumentParser) -> None:
    """The options of the proof."""
    parity.add_argument("--json", action="store_true", help="one JSON line a trial")
    parity.add_argument("--size", metavar="NAME", help="one size alone; default: all of the plan")
    parity.add_argument("--case", default="a,b,c,d,e,f", metavar="C,…", help="default %(default)s")
    parity.add_argument("--hours", metavar="N", help="begin no trial after so long; default: no limit")
    parity.add_argument("--resume", action="store_true", help="leave out what is in the results already")
    parity.add_argument(
        "--sweep", action="store_true", help="the outer step's knobs in the place of the cases"
    )
    parity.add_argument("--reduced", action="store_true", help="a small table in under five minutes")
    parity.add_argument(
        "--device", action="store_true", help="the sizes for an accelerator, a trial at a time"
    )
    parity.add_argument(
        "--plan", action="store_true", help="measure and print what all of it takes; train nothing"
    )
    parity.add_argument("--data", default="", metavar="URI", help="default: this Python's standard library")
    parity.add_argument("--jobs", metavar="N", help="trials at a time, a core each; default: all cores")
    parity.add_argument("--out", metavar="FOLDER", help=f"default {RESULTS}")


def run(options: argparse.Namespace) -> int:
    """Prints each trial when it is finished.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the results cannot be read.
    """
    try:
        from atoll_bench.cores import usable
        from atoll_bench.parity import cases, plan, proof
        from atoll_bench.parity.store import StoreError
    except ImportError as error:
        raise lacking(
            error, "bench parity needs the packages of runtime and simulator", "runtime,simulate"
        ) from error
    letters = options.case.replace(",", "")
    if not letters or not set(letters) <= set("abcdef"):
        raise UsageError(f"--case {options.case!r}: of a,b,c,d,e,f is wanted")
    chosen = cases.stages(options.size, options.reduced, options.device)
    if not chosen:
        every = dict.fromkeys(stage.size for stage in cases.stages(None, options.reduced, options.device))
        raise UsageError(f"--size {options.size!r}: one of {', '.join(every)} is wanted")
    jobs = 1 if options.device else len(usable())
    if options.jobs is not None:
        jobs = count("--jobs", options.jobs, most=1024)
    hours = None if options.hours is None else plain("--hours", options.hours, 0.001, 1000)
    if options.data:
        of_bucket("--data", options.data)
    if options.plan:
        _refuse_with_plan(options)
        print(plan.markdown(plan.estimate(chosen, letters), len(usable())))
        return 0
    request = proof.Request(
        stages=chosen,
        cases=letters,
        folder=_folder(RESULTS if options.out is None else options.out),
        jobs=jobs,
        seconds=None if hours is None else 3600 * hours,
        resume=options.resume,
        flag="--reduced " if options.reduced else "--device " if options.device else "",
        data=options.data,
        sweep=options.sweep,
    )
    try:
        for row in proof.prove(request, lambda text: print(text, file=sys.stderr, flush=True)):
            if options.json:
                print(json.dumps(row), flush=True)
    except StoreError as error:
        raise CommandError(str(error)) from error
    if not options.json:
        print((request.folder / f"{proof.NAME}.md").read_text(), end="")
    return 0


def _refuse_with_plan(options: argparse.Namespace) -> None:
    """What a plan, which trains nothing and writes nothing, has no use for."""
    for name in ("json", "resume", "sweep", "data", "jobs", "hours", "out"):
        if getattr(options, name) not in (None, False, ""):
            raise UsageError(f"--{name}: not with --plan, which trains nothing and writes nothing")


def _folder(text: str) -> Path:
    """Made where it is not there, and tried before the first trial has taken its hours."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=text):
            return Path(text)
    except OSError as error:
        raise UsageError(f"--out {text!r}: cannot be written: {error.strerror or error}") from error
