"""Simulates what the pools' links mean for a run, by the rules of syncer and learner."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from atoll_runtime.simulate.fleet.links import Links, on_links
from atoll_runtime.simulate.planner.needs import step_of
from atoll_runtime.simulate.planner.run import Assumptions, Run
from atoll_runtime.simulate.shard import Stalled

MOST_UNITS = 16
"""The most units simulated. Of more units, each pool gets its proportion, at least one."""
INTERVALS = 10
"""Intervals simulated."""
UNLIMITED_GBPS = 1e5
"""Gbit/s assumed for a pool if its link is not known."""
SHARES = ("member_share", "merged_share", "hidden_share")
"""Figures that are reported as the mean over a pool's units."""
SAME = ("need_gbps", "codec", "period", "advice")
"""Figures that are reported of a pool's first unit, because all its units have the same link."""


def on_their_links(run: Run, assumed: Assumptions) -> dict[str, dict[str, Any]]:
    """Returns, by pool with a known link, the bandwidth and what it means for the units. Raises `Stalled`: no quorum of
    them comes in time."""
    if assumed.least_link(run) is None:
        return {}
    part = min(1.0, MOST_UNITS / run.units)
    pools = [pool for pool in run.pools for _ in range(max(1, round(pool.units * part)))]
    asked = Links(
        gbps=[assumed.link_of(pool) or UNLIMITED_GBPS for pool in pools],
        params=run.parameters,
        step_seconds=[step_of(pool, run, assumed).seconds for pool in pools],
        outer=run.outer,
        communication=run.communication,
        quorum=math.ceil(run.quorum.min * part),
        steps=INTERVALS * run.outer.interval,
    )
    try:
        units, _ = on_links(asked)
    except Stalled as error:
        slowest = min(run.pools, key=lambda pool: assumed.link_of(pool) or math.inf)
        raise Stalled(
            f"pool {slowest.name}: link: {assumed.link_of(slowest):g} Gbit/s carries too little of this model: {error}"
        ) from error
    found = {}
    for pool in run.pools:
        if (gbps := assumed.link_of(pool)) is not None:
            mine = [unit for unit, its in zip(units, pools, strict=True) if its is pool]
            means = {key: fmean(getattr(unit, key) for unit in mine) for key in SHARES}
            same = {key: getattr(mine[0], key) for key in SAME}
            found[pool.name] = {"link_gbps": gbps, **means, **same}
    return found
