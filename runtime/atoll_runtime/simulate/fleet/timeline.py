"""What one learner did with its time, and what interrupted it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MARGIN = 10.0
"""Standard deviations by which draws exceed what is expected; to need more has odds below 1e-20."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A learner steps from `start` to `end` with `slices` of its slices; the last `lost` seconds come to nothing."""

    start: float
    end: float
    slices: int
    lost: float = 0.0


@dataclass
class Timeline:
    """Stretches in which the learner steps, and slice-seconds of all else by cause."""

    stretches: list[Stretch] = field(default_factory=list)
    idle: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    interruptions: int = 0
    """That hit a slice in use."""

    def step(self, start: float, end: float, slices: int, lost: float = 0.0) -> None:
        if end > start and slices:
            self.stretches.append(Stretch(start, end, slices, lost))


@dataclass(frozen=True)
class Interruptions:
    """Of one learner: ascending times in seconds, and for each a mark in [0, 1) that says which slice it hits."""

    times: list[float]
    marks: list[float]


def draw(chips: float, mtbi_seconds: float, seconds: float, rng: np.random.Generator) -> Interruptions:
    """Exponential interruptions of so many chips.

    One generator gives the same pattern, stretched, for any rate: fleets are compared on equal luck.
    """
    gaps, marks = rng.spawn(2)
    mean = mtbi_seconds / chips
    expected = seconds / mean
    size = int(expected + MARGIN * expected**0.5 + MARGIN**2)
    times: NDArray[np.float64] = np.cumsum(gaps.standard_exponential(size)) * mean
    times = times[: np.searchsorted(times, seconds)]
    return Interruptions(times.tolist(), marks.random(len(times)).tolist())
