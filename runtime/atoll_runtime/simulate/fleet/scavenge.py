"""Learners that are added at night: the time to train a number of tokens, decoupled and data-parallel.

The run begins in the morning with the learners that stay. Extra learners join at dusk and leave at dawn. During the
night the pool changes at intervals: one extra learner is taken away and another joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Method = Literal["data-parallel", "decoupled"]


@dataclass(frozen=True)
class Setting:
    """Times in hours. Every row of the table uses the same constants."""

    learners: int = 4
    """Learners by day."""
    day: float = 12.0
    night: float = 12.0
    work: float = 24.0
    """Tokens to train on, as the hours that the day's learners take alone."""
    join: float = 3 / 60
    """From a learner's start to its first step that counts: image, compilation, seeding. The others keep training."""
    reconfigure: float = 10 / 60
    """Data-parallel: at a change of the world all learners stop until it is rebuilt, recompiled and reloaded (the
    Gemini 2.5 report: 10 minutes and more, without slice-granular elasticity)."""
    change: float = 23 / 60
    """Between two changes of the night's pool, for any size, because one owner lends and takes back the capacity. The
    paper does not give it. It is the only calibrated constant, on one cell: data-parallel at +100 %."""
    allreduce: float = 4 / 27
    """Exposed all-reduce of data-parallel training in a very large ring, as a share of a step's compute by day; with n
    learners, (n−1)/n of it. With 4 learners it gives a compute utilisation of 90 %, for which links are bought."""


Stretch = tuple[float, float]
"""Hours with a constant speed of the work, and the speed, in day learners."""


def hours_to_work(setting: Setting, method: Method, extra: int) -> float:
    """Returns the wall-clock hours until the work is done, with `extra` learners at night."""
    left, hours, stretches = setting.work, 0.0, _stretches(setting, method, extra)
    while True:  # ends, because learners work on each day or in each night
        length, rate = next(stretches)
        done = length * rate / setting.learners
        if done >= left:
            return hours + left / done * length
        left, hours = left - done, hours + length


def speed(setting: Setting, learners: int) -> float:
    """Returns the speed of data-parallel training on `learners`, in day learners. The batch stays the same, so more
    learners shorten the compute of a step, but not its all-reduce."""

    def step(n: int) -> float:
        return setting.learners / n + setting.allreduce * (n - 1) / n

    return setting.learners * step(setting.learners) / step(learners)


def _stretches(setting: Setting, method: Method, extra: int) -> Iterator[Stretch]:
    def changed(hours: float, learners: int, new: int) -> Iterator[Stretch]:
        """Yields a period that begins with a change, by which `new` of the learners join."""
        if method == "data-parallel":
            pause = min(setting.reconfigure, hours)
            yield pause, 0.0
            yield hours - pause, speed(setting, learners)
        else:
            joining = min(setting.join, hours)
            yield joining, learners - new
            yield hours - joining, learners

    yield setting.day if extra else setting.work, setting.learners
    while True:
        left, new = setting.night, extra
        while left > 0:  # ends, because each turn reduces it
            piece = min(setting.change, left)
            yield from changed(piece, setting.learners + extra, new)
            left, new = left - piece, 1
        yield from changed(setting.day, setting.learners, 0)
