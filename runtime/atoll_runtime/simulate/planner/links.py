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
    links = [assumed.link_of(pool) for pool in run.pools]
    if not any(links):
        return {}
    part = min(1.0, MOST_UNITS / run.units)
    counts = [max(1, round(pool.units * part)) for pool in run.pools]
    pools = [number for number, count in enumerate(counts) for _ in range(count)]
    steps = [step_of(pool, run, assumed).seconds for pool in run.pools]
    asked = Links(
        gbps=[links[number] or UNLIMITED_GBPS for number in pools],
        params=run.parameters,
        step_seconds=[steps[number] for number in pools],
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
    for number, (pool, gbps) in enumerate(zip(run.pools, links, strict=True)):
        if gbps is not None:
            mine = [unit for unit, its in zip(units, pools, strict=True) if its == number]
            means = {share: fmean(getattr(unit, share) for unit in mine) for share in SHARES}
            found[pool.name] = {"link_gbps": gbps, **means, **{key: getattr(mine[0], key) for key in SAME}}
    return found
