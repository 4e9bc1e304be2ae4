"""What one learner did with its time, and what interrupted it."""

from __future__ import annotations

from collections import defaultdict, deque
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


@dataclass
class Pool:
    """Slices outside the mesh: healthy ones that stand by, and lost ones until they are ready."""

    standing: int
    seeding: float
    """The last seconds before a lost slice is ready."""
    away: deque[float] = field(default_factory=deque)
    """When each is ready, ascending."""

    def take(self, most: int) -> int:
        """So many of those that stand by, fewer where there are not."""
        taken = min(most, self.standing)
        self.standing -= taken
        return taken

    def advance(self, line: Timeline, start: float, end: float) -> None:
        """Charges what these slices did, and moves those that have become ready."""
        line.idle["standby"] += self.standing * (end - start)
        for ready in self.away:
            until = min(ready, end)
            repaired = min(max(ready - self.seeding, start), until)
            line.idle["repair"] += repaired - start
            line.idle["seeding"] += until - repaired
            line.idle["standby"] += end - until
        while self.away and self.away[0] <= end:
            self.away.popleft()
            self.standing += 1


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
