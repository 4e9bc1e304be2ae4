"""Learners that come for the night: time to a number of tokens, decoupled and data-parallel.

The run begins in the morning with the learners that stay. At dusk others join them, at dawn these leave; in the night
the pool changes now and then: one of them is taken back and another one comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Method = Literal["data-parallel", "decoupled"]
DAYS = 1000
"""Days that are looked at, at most."""


@dataclass(frozen=True)
class Setting:
    """Times in hours. One set of constants for every row."""

    learners: int = 4
    """By day."""
    day: float = 12.0
    night: float = 12.0
    work: float = 24.0
    """Tokens to train on, told as the hours that the day's learners take alone."""
    join: float = 3 / 60
    """From a learner's start to its first step that counts: image, compilation, seeding. The others train on."""
    reconfigure: float = 10 / 60
    """Data-parallel: everyone stops at a change of the world until it is built, compiled and loaded anew (the Gemini
    2.5 report: 10 minutes and more, where no slice-granular elasticity is prepared)."""
    change: float = 23 / 60
    """Between two changes of the night's pool, whatever its size: capacity is lent and taken back by one owner. The
    paper does not tell it. The one constant that is calibrated, on one cell: data-parallel at +100 %."""
    allreduce: float = 4 / 27
    """Exposed all-reduce of data-parallel, as a share of a day's compute in a step, in a ring of very many; of n
    learners (n−1)/n of it. With 4 it makes a compute utilisation of 90 %, for which links are bought."""


@dataclass(frozen=True)
class Stretch:
    """A time at one rate."""

    hours: float
    rate: float
    """Learners of the day whose work is done."""


def hours_to_work(setting: Setting, method: Method, extra: int) -> float:
    """Wall-clock hours until the work is done, with `extra` learners at night.

    Raises:
        ValueError: the method makes no progress with this setting.
    """
    left, hours = setting.work, 0.0
    for stretch in _stretches(setting, method, extra):
        done = stretch.hours * stretch.rate / setting.learners
        if done >= left:
            return hours + left / done * stretch.hours
        left, hours = left - done, hours + stretch.hours
    raise ValueError(f"work: {setting.work} hours are not done within {DAYS} days")


def speed(setting: Setting, learners: int) -> float:
    """Data-parallel on so many learners, in learners of the day: the batch stays, so a step is cut in more parts, and
    the all-reduce is not."""

    def step(n: int) -> float:
        return setting.learners / n + setting.allreduce * (n - 1) / n

    return setting.learners * step(setting.learners) / step(learners)


def _stretches(setting: Setting, method: Method, extra: int) -> Iterator[Stretch]:
    for day in range(DAYS):
        if method == "data-parallel" and extra and day:
            yield from _paused(setting, setting.day, setting.learners)
        else:
            yield Stretch(setting.day, setting.learners)
        left = setting.night
        new = extra
        while left > 0:  # ends: each turn takes `change` off it
            piece = min(setting.change, left) if extra else left
            if method == "data-parallel" and extra:
                yield from _paused(setting, piece, setting.learners + extra)
            else:
                joining = min(setting.join, piece)
                yield Stretch(joining, setting.learners + extra - new)
                yield Stretch(piece - joining, setting.learners + extra)
            left, new = left - piece, min(extra, 1)


def _paused(setting: Setting, hours: float, learners: int) -> Iterator[Stretch]:
    """A world that is built anew, and then works."""
    pause = min(setting.reconfigure, hours)
    yield Stretch(pause, 0.0)
    yield Stretch(hours - pause, speed(setting, learners))
