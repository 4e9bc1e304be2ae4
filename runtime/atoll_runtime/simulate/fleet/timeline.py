"""A learner's interruptions, how it spends its time, and a fleet's chip-seconds by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.simulate.fleet.setting import Fleet

MARGIN = 10.0
"""Standard deviations by which the number of draws exceeds the mean. More are needed with odds below 1e-20."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A learner steps from `start` to `end` with `slices` of its slices. Work of the last `lost` seconds is lost."""

    start: float
    end: float
    slices: int
    lost: float = 0.0


@dataclass
class Timeline:
    """Stretches in which the learner steps, and all other slice-seconds by cause."""

    stretches: list[Stretch] = field(default_factory=list)
    idle: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    interruptions: int = 0
    """Number of interruptions that hit a slice in use."""

    def step(self, start: float, end: float, slices: int, lost: float = 0.0) -> None:
        if end > start and slices:
            self.stretches.append(Stretch(start, end, slices, lost))


Interruptions = Sequence[tuple[float, float]]
"""One learner's interruptions: ascending times in seconds, each with a mark in [0, 1) that selects the slice."""


def draw(chips: float, mtbi_seconds: float, seconds: float, rng: np.random.Generator) -> Interruptions:
    """Draws exponential interruptions of `chips` chips.

    For any rate the same generator gives the same pattern, stretched in time, so that fleets are comparable.
    """
    gaps, marks = rng.spawn(2)
    mean = mtbi_seconds / chips
    expected = seconds / mean
    size = int(expected + MARGIN * expected**0.5 + MARGIN**2)
    times: NDArray[np.float64] = np.cumsum(gaps.standard_exponential(size)) * mean
    times = times[: np.searchsorted(times, seconds)]
    return list(zip(times.tolist(), marks.random(len(times)).tolist(), strict=True))


CAUSES: Mapping[str, str] = {
    "useful": "steps that count",
    "scale_down": "pauses in which a learner takes slices out",
    "scale_up": "pauses in which a learner takes slices in, and none out",
    "restart": "a whole learner starts again on hardware that is there",
    "waiting": "a whole learner waits for hardware",
    "repair": "slices that are away while their learner goes on",
    "standby": "healthy slices outside the mesh, which wait to join",
    "seeding": "state is loaded, and brought up to date",
    "lost_work": "steps that were lost with their learner",
    "below_quorum": "steps while fewer than K learners live, so that nothing can be merged",
}


@dataclass(frozen=True)
class Account:
    """How a fleet spent its time."""

    chip_seconds: Mapping[str, float]
    """By cause; they sum to the chips times the seconds simulated."""
    uptime: float
    """Share of the time in which at least one learner steps."""
    interruptions: int

    @property
    def share(self) -> dict[str, float]:
        """Shares of the chip-time by cause."""
        whole = sum(self.chip_seconds.values())
        return {cause: spent / whole for cause, spent in self.chip_seconds.items()}

    @property
    def goodput(self) -> float:
        """The share of the chip-time spent on useful training."""
        return self.share["useful"]


def account(fleet: Fleet, lines: Sequence[Timeline], seconds: float) -> Account:
    """Sums the learners' time-lines."""
    spent = dict.fromkeys(CAUSES, 0.0)
    for line in lines:
        for cause, slice_seconds in line.idle.items():
            spent[cause] += slice_seconds
        for stretch in line.stretches:
            spent["useful"] += stretch.slices * (stretch.end - stretch.start - stretch.lost)
            spent["lost_work"] += stretch.slices * stretch.lost
    stepping, unmerged = _together(lines, fleet.quorum)
    spent["useful"] -= unmerged
    spent["below_quorum"] = unmerged
    chips = fleet.learner_chips / fleet.slices
    return Account(
        {cause: slice_seconds * chips for cause, slice_seconds in spent.items()},
        stepping / seconds,
        sum(line.interruptions for line in lines),
    )


def _together(lines: Sequence[Timeline], quorum: int) -> tuple[float, float]:
    """Returns the seconds in which any learner steps, and the useful slice-seconds while fewer than `quorum` live."""
    live: Counter[float] = Counter()
    useful: Counter[float] = Counter()
    for line in lines:
        for stretch in line.stretches:
            live[stretch.start] += 1
            live[stretch.end] -= 1
            useful[stretch.start] += stretch.slices
            useful[max(stretch.end - stretch.lost, stretch.start)] -= stretch.slices
    learners = slices = 0
    stepping = unmerged = 0.0
    for start, end in pairwise(sorted({*live, *useful})):
        learners += live[start]
        slices += useful[start]
        stepping += (end - start) * (learners > 0)
        unmerged += (end - start) * slices * (learners < quorum)
    return stepping, unmerged
