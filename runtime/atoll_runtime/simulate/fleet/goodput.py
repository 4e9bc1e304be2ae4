"""Goodput and uptime of a fleet under failures, of one run and as the mean of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev

import numpy as np

from atoll_runtime.simulate.fleet.methods import elastic, rigid, unit
from atoll_runtime.simulate.fleet.setting import DAY, Fleet, Heal, Method, Recovery
from atoll_runtime.simulate.fleet.timeline import CAUSES, Account, Timeline, account, draw

REPEATS = 8
STUDENT = 2.365
"""Student's t at 97.5 % for the mean of `REPEATS` values."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to simulate. For one seed, repeat r of every case uses the same random numbers."""

    fleet: Fleet
    method: Method
    recovery: Recovery = field(default_factory=Recovery)
    heal: Heal = field(default_factory=Heal)
    """Used by method "unit" only."""
    seconds: float = DAY
    """Seconds of one repeat."""
    seed: int = 0

    @property
    def interruptions(self) -> float:
        """Expected number over all repeats."""
        return self.fleet.chips * self.seconds / self.fleet.mtbi_seconds * REPEATS


@dataclass(frozen=True)
class Estimate:
    """Means over the repeats."""

    goodput: float
    uptime: float
    interval: tuple[float, float]
    """95 % interval of the goodput."""
    share: Mapping[str, float]
    """Shares of the chip-time by cause (`timeline.CAUSES`); they sum to 1."""
    interruptions_a_day: float


def simulate(case: Case, rng: np.random.Generator) -> Account:
    """Simulates one run. Each learner is simulated alone, with its own interruptions. Uptime and quorum are computed
    from all of them."""
    fleet, seconds = case.fleet, case.seconds
    lines = [_learner(case, luck) for luck in rng.spawn(fleet.learners)]
    return account(fleet, lines, seconds)


def estimate(case: Case) -> Estimate:
    """Returns the mean of `REPEATS` runs."""
    accounts = [simulate(case, np.random.default_rng([case.seed, turn])) for turn in range(REPEATS)]
    goodputs = [one.goodput for one in accounts]
    mean, half = fmean(goodputs), STUDENT * stdev(goodputs) / REPEATS**0.5
    return Estimate(
        goodput=mean,
        uptime=fmean(one.uptime for one in accounts),
        interval=(max(0.0, mean - half), min(1.0, mean + half)),
        share={cause: fmean(one.share[cause] for one in accounts) for cause in CAUSES},
        interruptions_a_day=fmean(one.interruptions for one in accounts) * DAY / case.seconds,
    )


def _learner(case: Case, luck: np.random.Generator) -> Timeline:
    fleet, recovery, seconds = case.fleet, case.recovery, case.seconds
    interruptions = draw(fleet.learner_chips, fleet.mtbi_seconds, seconds, luck)
    if case.method == "rigid":
        return rigid(fleet.slices, recovery, interruptions, seconds)
    if case.method == "unit":
        return unit(fleet.slices, recovery, case.heal, interruptions, seconds)
    return elastic(fleet.slices, recovery, interruptions, seconds)
