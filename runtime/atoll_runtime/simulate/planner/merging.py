"""The share of trained tokens that is merged, by the product's own programs, with units that never fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from atoll_runtime.contract import OuterSpec, QuorumSpec
from atoll_runtime.simulate.fleet.rounds import outcome
from atoll_runtime.simulate.fleet.scenario import Scenario, Unit
from atoll_runtime.simulate.planner.run import Run

MOST_UNITS = 4
"""The most units simulated. Of more units, one stands for each quarter by speed. Twice as many change the share by less
than 0.1 %."""
MOST_FRAGMENTS = 6
"""The most fragments simulated. A fragment's share hardly depends on the number of others."""
LONGEST_INTERVAL = 48
"""The longest interval simulated. With a quorum of one and no grace it discards 2 points more than one of 96."""
INTERVALS = 16
"""Intervals simulated. In the first ones nothing is discarded, because no anchor is too old yet."""


def merged_share(run: Run, step_seconds: Sequence[float]) -> float:
    """Returns the merged share, 0…1, of the tokens that are merged or discarded. `step_seconds`: by pool.

    Speeds are relative to the slowest unit. Its step is simulated as one second, in which the exchange is hidden.
    """
    every = [
        seconds for pool, seconds in zip(run.pools, step_seconds, strict=True) for _ in range(pool.units)
    ]
    paces = sorted(seconds / max(every) for seconds in every)
    count, interval = min(len(paces), MOST_UNITS), min(run.outer.interval, LONGEST_INTERVAL)
    outer = OuterSpec(
        fragments=min(run.outer.fragments, MOST_FRAGMENTS),
        interval=interval,
        overlap=min(run.outer.overlap, interval),
    )
    quorum = QuorumSpec(min=math.ceil(run.quorum.min * count / len(paces)), grace=run.quorum.grace)
    few = tuple(paces[(2 * i + 1) * len(paces) // (2 * count)] for i in range(count))
    return _simulated(few, outer, quorum)


@lru_cache(maxsize=64)
def _simulated(paces: tuple[float, ...], outer: OuterSpec, quorum: QuorumSpec) -> float:
    units = tuple(map(Unit, paces))
    found = outcome(Scenario(outer, quorum, INTERVALS * outer.interval, units), seed=0)
    return found.merged_share / (found.merged_share + sum(found.discarded.values()))
