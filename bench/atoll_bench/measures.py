"""Functions that measure the figures of `atoll bench`. They import packages only when needed.

Each function gets parsed options by name and yields one object for each line of JSON: a dataclass or a dictionary. It
raises `UsageError` if the options do not fit together, and `CommandError` if nothing could be measured.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll_cli.errors import UsageError

if TYPE_CHECKING:
    from atoll_runtime.contract import Codec


def of(module: str) -> Callable[..., Iterable[Any]]:
    """Calls `measure` of a module of this package with the options unchanged."""
    return lambda **options: import_module(f"atoll_bench.{module}").measure(**options)


def merge(
    parameters: int, fragments: int, codec: Codec | None, learners: Sequence[int], repeat: int
) -> Iterator[Any]:
    from atoll_bench.merge import CODECS, layout_of, measure

    layout = layout_of(parameters, fragments)
    for each in CODECS if codec is None else [codec]:
        for count in learners:
            yield measure(layout, count, each, repeat)


def attacks(**options: Any) -> Iterable[Any]:
    from atoll_bench.attacks import measure

    logging.disable(logging.WARNING)  # a line for each refusal
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # such small models are slower on more cores
    return measure(**options)


def regions(steps: int, seeds: Sequence[int], cut_seconds: int, plot: str | None) -> Iterator[Any]:
    from atoll_bench.regions.measure import measure

    _leave_nothing()
    yield measure(steps, seeds, cut_seconds, plot, _print_progress)


def parity(
    size: str | None, case: Sequence[str], out: str | None, resume: bool, reduced: bool, device: bool
) -> Iterable[Any]:
    from atoll_bench.cores import usable
    from atoll_bench.parity import cases, proof

    if device and reduced:
        raise UsageError("--device: not with --reduced, which has a size of its own")
    stages = cases.stages(size, reduced=reduced, device=device)
    letters = "".join(case)
    if not set(letters) & {letter for stage in stages for letter in stage.cases}:
        raise UsageError(f"--size {size!r}, --case {','.join(letters)!r}: there is no such trial")
    folder = Path(out or ("/tmp/parity" if reduced else "docs/results"))
    folder.mkdir(parents=True, exist_ok=True)
    jobs = 1 if device else len(usable())
    flag = "--reduced" if reduced else "--device" if device else ""
    return proof.prove(stages, letters, folder, jobs, _print_progress, resume=resume, flag=flag)


def utilisation(gbps: Sequence[float], intervals: Sequence[int]) -> Iterable[Any]:
    from atoll_bench.regions.utilisation import measure

    _leave_nothing()
    return measure(gbps, intervals, _print_progress)


def operator(case: Sequence[str], repeat: int, scheduler_qps: int | None) -> Iterable[Any]:
    from atoll_bench.operator import measure

    return measure(frozenset(case), repeat, _print_progress, scheduler_qps)


def _leave_nothing() -> None:
    """Makes SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that context managers end what this process started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
