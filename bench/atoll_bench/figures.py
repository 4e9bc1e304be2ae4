"""Medians and quartiles of samples, rates of two loops that run in turns, figures as JSON, and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


def spread(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return float(median), float(low), float(high)


def say(text: str) -> None:
    """Prints progress, beside the figures."""
    print(text, file=sys.stderr, flush=True)


def document(name: str, figure: Any) -> dict[str, Any]:
    """Returns a dataclass as JSON types, with floats to six digits, and with `"figure": name` if `name` is not empty.
    Returns a dictionary unchanged."""
    if isinstance(figure, dict):
        return figure
    return ({"figure": name} if name else {}) | {key: _short(value) for key, value in asdict(figure).items()}


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Phase:
    """Some steps of one loop."""

    seconds: float
    core_seconds: float


@dataclass(frozen=True)
class Rates:
    """Inner steps per second of a plain loop and of ours: medians over pairs of phases."""

    pairs: int
    steps: int
    """Steps of each loop in all phases."""
    plain: float
    ours: float
    ratio: float
    """Seconds of the plain phase / seconds of our phase in a pair."""
    ratio_quartiles: tuple[float, float]
    ratio_of_core_time: float
    """The same ratio for the CPU seconds of all pairs. Close to `ratio` on an idle machine; other load changes it
    little."""


def timed(work: Callable[[int], None], steps: int) -> Phase:
    began, used = time.perf_counter(), time.process_time()
    work(steps)
    return Phase(time.perf_counter() - began, time.process_time() - used)


def in_turns(pairs: int, steps: int, plain: Callable[[int], Phase], ours: Callable[[int], Phase]) -> Rates:
    """Runs phases of both loops: plain, ours, ours, plain, …"""
    loops, found = (plain, ours), (list[Phase](), list[Phase]())
    for number in range(pairs):
        for which in (number % 2, 1 - number % 2):
            found[which].append(loops[which](steps))
    return rates(steps, *found)


def rates(steps: int, plain: Sequence[Phase], ours: Sequence[Phase]) -> Rates:
    """Rates of at least one pair of phases of `steps` steps each."""
    ratio, low, high = spread([one.seconds / other.seconds for one, other in zip(plain, ours, strict=True)])
    return Rates(
        pairs=len(plain),
        steps=steps * len(plain),
        plain=steps / spread([phase.seconds for phase in plain])[0],
        ours=steps / spread([phase.seconds for phase in ours])[0],
        ratio=ratio,
        ratio_quartiles=(low, high),
        ratio_of_core_time=sum(phase.core_seconds for phase in plain)
        / sum(phase.core_seconds for phase in ours),
    )
