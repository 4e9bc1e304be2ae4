"""Which share of the trained tokens a run's merges take: the syncer's own machine, on units of the run's speeds."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from atoll_runtime.simulate.fleet.learner import Life
from atoll_runtime.simulate.fleet.rounds import Scenario, World
from atoll_runtime.simulate.planner.run import Run
from atoll_runtime.sync.rules import Rules

MOST_UNITS = 4
"""Simulated: of more, each quarter by speed stands for its part. Twice as many change the share by less than 0.1 %."""
MOST_FRAGMENTS = 24
"""Simulated; the share of a fragment does not depend on how many others there are."""
LONGEST_INTERVAL = 96
"""Simulated. What is overwritten is about τ steps in H, so that a longer one merges a little more than this."""
INTERVALS = 4
"""Simulated. The first discards less than the others, so that a few are wanted."""


def merged_share(run: Run, step_seconds: tuple[float, ...]) -> float:
    """0…1, of the tokens that have a fate; `step_seconds` by pool.

    Speeds are relative to the slowest: its step stands for one second, in which the exchange is hidden.
    """
    paces = sorted(
        seconds / max(step_seconds)
        for pool, seconds in zip(run.pools, step_seconds, strict=True)
        for _ in range(pool.units)
    )
    count = min(len(paces), MOST_UNITS)
    interval = min(run.interval, LONGEST_INTERVAL)
    return _simulated(
        tuple(paces[(2 * i + 1) * len(paces) // (2 * count)] for i in range(count)),
        Rules(
            fragments=min(run.fragments, MOST_FRAGMENTS),
            interval=interval,
            overlap=min(run.overlap, interval),
            quorum=math.ceil(run.quorum * count / len(paces)),
            grace_fraction=run.grace_fraction,
            grace_steps=run.grace_steps,
            target_steps=INTERVALS * interval,
            target_tokens=None,
        ),
    )


@lru_cache(maxsize=64)
def _simulated(paces: tuple[float, ...], rules: Rules) -> float:
    lives = tuple(Life(f"unit-{number}", pace) for number, pace in enumerate(paces))
    world = World(Scenario(rules, lives), np.random.default_rng(0))
    for _ in world.decisions():
        pass
    merged = sum(account.merged for account in world.accounts.values())
    discarded = sum(sum(account.discarded.values()) for account in world.accounts.values())
    return merged / (merged + discarded)
