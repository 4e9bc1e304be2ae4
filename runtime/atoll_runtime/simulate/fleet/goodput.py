"""Goodput and uptime of a fleet under failures: one stretch of time, and the mean of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev

import numpy as np

from atoll_runtime.simulate.fleet.account import CAUSES, Account, account
from atoll_runtime.simulate.fleet.elastic import elastic
from atoll_runtime.simulate.fleet.setting import DAY, Fleet, Heal, Method, Recovery
from atoll_runtime.simulate.fleet.timeline import Interruptions, Timeline, draw
from atoll_runtime.simulate.fleet.whole import rigid, unit
from atoll_runtime.simulate.processes import in_processes

SERIAL = 400_000
"""Interruptions that one process handles sooner than others have started: about two seconds."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question: so many repeats of so many seconds. Repeat r of any case has the same luck for one seed."""

    fleet: Fleet
    method: Method
    recovery: Recovery = field(default_factory=Recovery)
    heal: Heal = field(default_factory=Heal)
    """Of method "unit" alone."""
    seconds: float = DAY
    seed: int = 0
    repeats: int = 8
    """At least 2."""

    @property
    def interruptions(self) -> float:
        """Expected, over all repeats."""
        return self.fleet.chips * self.seconds / self.fleet.mtbi_seconds * self.repeats


@dataclass(frozen=True)
class Estimate:
    """Means over the repeats."""

    goodput: float
    uptime: float
    interval: tuple[float, float]
    """95 % for the goodput."""
    share: Mapping[str, float]
    """Of the chip-time, by cause (`account.CAUSES`); they sum to 1."""
    interruptions_a_day: float


def simulate(case: Case, rng: np.random.Generator) -> Account:
    """One run. Every learner by itself, from its own interruptions; together they are up, and have a quorum or not."""
    fleet, seconds = case.fleet, case.seconds
    lines = [
        _learner(case, draw(fleet.learner_chips, fleet.mtbi_seconds, seconds, luck))
        for luck in rng.spawn(fleet.learners)
    ]
    return account(fleet, lines, seconds)


def estimate(cases: Sequence[Case], workers: int | None = None) -> list[Estimate]:
    """Many cases at once, over `workers` processes; their number changes nothing but the time it takes.

    Args:
        workers: None: one where the work is small, else one a core.
    """
    tasks = [(case, turn) for case in cases for turn in range(case.repeats)]
    if workers is None and sum(case.interruptions for case in cases) < SERIAL:
        workers = 1
    accounts = in_processes(_run, tasks, workers)
    results, first = [], 0
    for case in cases:
        results.append(_summary(case, accounts[first : first + case.repeats]))
        first += case.repeats
    return results


def student(repeats: int) -> float:
    """Student's t at 97.5 % for a mean of so many: Cornish-Fisher, within 1 % from 4 on, too low by 28 % for 2."""
    z, n = NormalDist().inv_cdf(0.975), repeats - 1
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _run(task: tuple[Case, int]) -> Account:
    case, turn = task
    return simulate(case, np.random.default_rng([case.seed, turn]))


def _summary(case: Case, accounts: Sequence[Account]) -> Estimate:
    goodputs = [one.goodput for one in accounts]
    mean = fmean(goodputs)
    half = student(len(goodputs)) * stdev(goodputs) / len(goodputs) ** 0.5
    return Estimate(
        goodput=mean,
        uptime=fmean(one.uptime for one in accounts),
        interval=(max(0.0, mean - half), min(1.0, mean + half)),
        share={cause: fmean(one.share[cause] for one in accounts) for cause in CAUSES},
        interruptions_a_day=fmean(one.interruptions for one in accounts) * DAY / case.seconds,
    )


def _learner(case: Case, interruptions: Interruptions) -> Timeline:
    fleet, recovery, seconds = case.fleet, case.recovery, case.seconds
    if case.method == "rigid":
        return rigid(fleet.slices, recovery, interruptions, seconds)
    if case.method == "unit":
        return unit(fleet.slices, recovery, case.heal, interruptions, seconds)
    return elastic(fleet.slices, recovery, interruptions, seconds)
