"""The input of the simulation of rounds: the run, its units, durations of their steps, costs of all other work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.random import Generator

from atoll_runtime.contract import (
    CheckpointSpec,
    CommunicationSpec,
    OuterSpec,
    QuorumSpec,
    RunContract,
    TargetSpec,
)
from atoll_runtime.protocol.roster import Ranking
from atoll_runtime.simulate.blank import run_contract
from atoll_runtime.simulate.network import Wire
from atoll_runtime.simulate.shard import COSTS, Costs

DRIFT_STEPS = 24
"""Steps for which a learner keeps a drawn pace: one interval H.

The paper injects "variance" without saying how long it lasts. The causes of uneven hosts (neighbours, heat, input)
last longer than the τ = 2 steps that overlap hides. With a new draw at each step, overlap would average most of it out.
"""
FIXED = CommunicationSpec(codec=OuterSpec().codec)
"""Units of the default scenario do not choose a codec."""
LEAST = 0.1
"""A drawn pace is at least this share of the learner's mean pace, so that every step takes time."""


def drift(pace: float, spread: float, rng: Generator) -> Iterator[float]:
    """Yields the seconds of a learner's steps: normal around `pace` with a relative spread. Each draw holds for
    `DRIFT_STEPS`, the first for a random number of steps, so that learners that begin together change at different
    times."""
    steps = int(rng.integers(1, DRIFT_STEPS + 1))
    while True:
        yield from repeat(pace * max(LEAST, 1.0 + spread * float(rng.standard_normal())), steps)
        steps = DRIFT_STEPS


def drifts(paces: Sequence[float], spread: float, rng: Generator) -> list[Iterator[float]]:
    """Returns the step times of learners with these paces. Each has its own random stream, so that paces stay the same
    when only a policy changes."""
    return [drift(pace, spread, stream) for pace, stream in zip(paces, rng.spawn(len(paces)), strict=True)]


def clock_step(paces: Sequence[float], outer: OuterSpec) -> float:
    """Returns the seconds of a step of the syncer's clock: those of the slowest unit that sets it (see `Roster`)."""
    ranking = Ranking()
    for unit, pace in enumerate(paces):
        ranking.set(str(unit), pace)
    return ranking.largest(outer.slow_factor * ranking.median if outer.guard else math.inf)


@dataclass(frozen=True)
class Unit:
    """A learner that runs from the beginning to the end."""

    pace: float
    """Mean seconds of an inner step."""
    wire: Wire | None = None
    """None: a link according to the scenario's costs."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated. It uses the schedule and the codec of `outer`."""

    outer: OuterSpec
    quorum: QuorumSpec
    steps: int
    """Global steps until the end."""
    units: tuple[Unit, ...]
    jitter: float = 0.0
    """Relative spread of a learner's pace."""
    costs: Costs = COSTS
    communication: CommunicationSpec = FIXED
    audit: int | None = None
    """Global steps between two audits. Nobody evaluates here, but units keep one codec. None: no audits."""

    @property
    def run(self) -> RunContract:
        """Takes no cut, because a cut does not delay anyone."""
        return run_contract(
            outer=self.outer,
            communication=self.communication,
            quorum=self.quorum,
            target=TargetSpec(global_steps=self.steps),
            checkpoint=CheckpointSpec(uri="file:///nowhere", interval_steps=1_000_000),
            audit=self.audit,
        )

    @property
    def paces(self) -> list[float]:
        return [unit.pace for unit in self.units]


def waiting_goodput(scenario: Scenario, seed: int) -> float:
    """Returns the share of time in inner steps of synchronous learners, with a merge of all learners at each step.

    This is not Atoll's method: these learners wait for merges, and so for the slowest (arXiv 2604.21428, §4.4). None
    makes a step more than τ rounds ahead of the newest merge that it has received.
    """
    outer, steps, costs = scenario.outer, scenario.steps, scenario.costs
    ahead = outer.overlap * math.ceil(outer.interval / outer.fragments)
    exchange = costs.body + costs.merge + costs.write + costs.body
    learners = drifts(scenario.paces, scenario.jitter, np.random.default_rng(seed))
    ended_M, busy = np.zeros(len(learners)), 0.0
    merged = [0.0] * (steps + 1)
    """When each step's merge reaches the learners."""
    for step in range(1, steps + 1):
        seconds_M = np.array([next(pace) for pace in learners])
        ended_M = np.maximum(ended_M, merged[max(0, step - ahead)]) + seconds_M
        merged[step] = float(ended_M.max()) + exchange
        busy += float(seconds_M.sum())
    return busy / (len(learners) * float(ended_M.max()))
