"""The figures of `atoll bench`, as they are measured. Imports packages only when needed.

Each function gets parsed options and yields lines of JSON: dataclasses, or documents. It raises `UsageError` where the
options do not fit, `CommandError` where nothing could be measured.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from atoll_cli.errors import UsageError


def merge(options: argparse.Namespace) -> Iterator[Any]:
    from atoll_bench.merge import CODECS, layout_of, measure

    layout = layout_of(options.parameters, options.fragments)
    for codec in CODECS if options.codec is None else [options.codec]:
        for learners in options.learners:
            yield measure(layout, learners, codec, options.repeat)


def attacks(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.attacks import outcomes

    logging.disable(logging.WARNING)  # a line for each refusal
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # models so small are slower on more cores
    return outcomes(options.attack, options.seed, options.size, options.steps)


def learner(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.learner import Setting, measure

    return measure(_setting(Setting, options))


def link(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.link import measure

    return measure(options.case, options.megabytes, options.repeat)


def journal(options: argparse.Namespace) -> Iterator[Any]:
    from atoll_bench.journal import measure

    yield measure(options.megabytes, options.merges)


def restore(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.restore import measure

    return measure(options.parameters, options.repeat)


def regions(options: argparse.Namespace) -> Iterator[Any]:
    from atoll_bench.regions.measure import measure
    from atoll_bench.regions.plot import draw

    _leave_nothing()
    found = measure(options.steps, options.seeds, options.cut_seconds, _print_progress)
    if options.plot is not None:
        draw(found, Path(options.plot))
    yield found.document


def parity(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.cores import usable
    from atoll_bench.parity import cases, proof

    if options.device and options.reduced:
        raise UsageError("--device: not with --reduced, which has a size of its own")
    stages = cases.stages(options.size, reduced=options.reduced, device=options.device)
    letters = "".join(options.case)
    if not set(letters) & {letter for stage in stages for letter in stage.cases}:
        raise UsageError(f"--size {options.size!r}, --case {','.join(letters)!r}: there is no such trial")
    folder = Path(options.out or ("/tmp/parity" if options.reduced else "docs/results"))
    folder.mkdir(parents=True, exist_ok=True)
    jobs = 1 if options.device else len(usable())
    flag = "--reduced" if options.reduced else "--device" if options.device else ""
    return proof.prove(stages, letters, folder, jobs, _print_progress, resume=options.resume, flag=flag)


def utilisation(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.regions.utilisation import measure

    _leave_nothing()
    return measure(options.gbps, options.intervals, _print_progress)


def operator(options: argparse.Namespace) -> Iterable[Any]:
    from atoll_bench.operator import measure
    from atoll_bench.verdict import CASES

    cases = options.case.split(",")
    if not set(cases) <= set(CASES):
        raise UsageError(f"--case {options.case!r}: of {','.join(CASES)} is wanted")
    return measure(frozenset(cases), options.repeat, _print_progress, options.scheduler_qps)


def step(options: argparse.Namespace) -> Iterator[Any]:
    from atoll_bench.step import Setting, measure

    tflops = options.peak_tflops
    yield measure(_setting(Setting, options), peak=None if tflops is None else 1e12 * tflops)


def _setting(kind: Any, options: argparse.Namespace) -> Any:
    """A dataclass of options of the same names."""
    return kind(*(getattr(options, each.name) for each in fields(kind)))


def _leave_nothing() -> None:
    """Whatever ends this process, its context managers end what it has started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
