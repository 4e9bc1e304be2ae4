"""Which share of the trained tokens merges take: the syncer's own machine, on learners of given speeds that stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.fleet.rounds import World
from atoll_runtime.simulate.fleet.scenario import Scenario, Unit

MOST_LEARNERS = 4
"""Simulated: of more, each quarter by speed stands for its part. Twice as many change the share by less than 0.1 %."""
MOST_FRAGMENTS = 6
"""Simulated; the share of a fragment hardly depends on how many others there are."""
LONGEST_INTERVAL = 48
"""Simulated, in place of longer ones: with a quorum of one and no grace 2 points more are discarded than in 96."""
INTERVALS = 16
"""Simulated. Nothing is discarded in the first ones, until anchors are too old."""


def merged_share(step_seconds: Sequence[float], rules: Rules, jitter: float = 0.0) -> float:
    """0…1, of the tokens that have a fate; a step time of each learner. The rules' target is not looked at.

    Speeds are relative to the slowest: its step stands for one second, in which the exchange is hidden.

    Args:
        jitter: spread of each learner's pace, which it keeps for an interval.
    """
    paces = sorted(seconds / max(step_seconds) for seconds in step_seconds)
    count = min(len(paces), MOST_LEARNERS)
    interval = min(rules.interval, LONGEST_INTERVAL)
    return _simulated(
        tuple(paces[(2 * i + 1) * len(paces) // (2 * count)] for i in range(count)),
        replace(
            rules,
            fragments=min(rules.fragments, MOST_FRAGMENTS),
            interval=interval,
            overlap=min(rules.overlap, interval),
            quorum=math.ceil(rules.quorum * count / len(paces)),
            target_steps=INTERVALS * interval,
            target_tokens=None,
        ),
        jitter,
    )


@lru_cache(maxsize=64)
def _simulated(paces: tuple[float, ...], rules: Rules, jitter: float) -> float:
    units = tuple(Unit(f"unit-{number}", pace) for number, pace in enumerate(paces))
    world = World(Scenario(rules, units, jitter=jitter), np.random.default_rng(0))
    for _ in world.merges():
        pass
    merged = sum(account.merged for account in world.accounts.values())
    discarded = sum(sum(account.discarded.values()) for account in world.accounts.values())
    return merged / (merged + discarded)
