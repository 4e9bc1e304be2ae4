"""What the simulation of rounds is asked for: who is there, how long steps take, and the time that things take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from atoll_runtime.contract import Codec, CommunicationSpec, GraceSpec
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.blank import FIXED, NO_CUTS
from atoll_runtime.simulate.link import Wire
from atoll_runtime.simulate.shard import COSTS, Costs

DRIFT_STEPS = 24
"""Steps for which a learner keeps a drawn pace: one interval H.

The paper injects "variance" without saying how long it lasts. What makes hosts uneven (neighbours, heat, input) lasts
for longer than the τ = 2 steps that overlap hides; drawn anew at each step, most of it would average out there.
"""
LEAST = 0.1
"""A drawn pace is at least this share of the learner's own: no step takes no time."""


@dataclass
class Drift:
    """One learner's step times: normal around `pace` with a relative spread, held for `steps` steps each."""

    pace: float
    """Mean seconds of a step."""
    spread: float
    steps: int
    rng: Generator
    _left: int = 0
    _now: float = 0.0

    def next(self) -> float:
        """Seconds of the next step. Learners that begin together change at different moments."""
        if self._left == 0:
            first = self._now == 0.0
            self._left = int(self.rng.integers(1, self.steps + 1)) if first else self.steps
            self._now = self.pace * max(LEAST, 1.0 + self.spread * float(self.rng.standard_normal()))
        self._left -= 1
        return self._now


def waiting_goodput(drifts: Sequence[Drift], steps: int, ahead: int) -> float:
    """Share of the learners' time in inner steps, where a merge of step t takes in every learner's step t.

    Such synchronous learners are not ours: they wait for merges, and pay for the slowest (arXiv 2604.21428, §4.4).

    Args:
        ahead: steps that a learner makes at most beyond the newest merge it has taken.
    """
    exchange = COSTS.push + COSTS.merge + COSTS.write + COSTS.fetch
    ended_M, busy = np.zeros(len(drifts)), 0.0
    merged = [0.0] * (steps + 1)
    """When each step's merge is with the learners."""
    for step in range(1, steps + 1):
        seconds_M = np.array([drift.next() for drift in drifts])
        ended_M = np.maximum(ended_M, merged[max(0, step - ahead)]) + seconds_M
        merged[step] = float(ended_M.max()) + exchange
        busy += float(seconds_M.sum())
    return busy / (len(drifts) * float(ended_M.max()))


def simulated_rules(
    *, fragments: int, interval: int, overlap: int, quorum: int, grace: GraceSpec, steps: int
) -> Rules:
    """Rules of one shard that takes no cut, until its clock has made so many steps."""
    return Rules(
        fragments=fragments,
        interval=interval,
        overlap=overlap,
        quorum=quorum,
        grace_fraction=grace.fraction,
        grace_steps=grace.max_steps,
        target_steps=steps,
        target_tokens=None,
        cut_interval=NO_CUTS,
    )


@dataclass(frozen=True)
class Unit:
    """A learner that stays from the beginning to the end."""

    name: str
    pace: float
    """Mean seconds of an inner step."""
    wire: Wire | None = None
    """None: as the scenario's costs say."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated, until the clock reaches the rules' target."""

    rules: Rules
    """Of one shard, with a target in steps; no cut is taken, since it stops nobody."""
    units: tuple[Unit, ...]
    jitter: float = 0.0
    """Relative spread of a learner's pace."""
    costs: Costs = COSTS
    codec: Codec = "float32"
    """Of the run."""
    communication: CommunicationSpec = FIXED
