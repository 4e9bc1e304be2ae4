"""What the pools' links mean for a run, by the rules of syncer and learner."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.random import default_rng

from atoll_runtime.simulate.fleet.links import Links, UnitOnLink, on_links
from atoll_runtime.simulate.planner.run import Assumptions, Run
from atoll_runtime.simulate.planner.steps import step_of

MOST_UNITS = 16
"""Simulated: of more, each pool has its part."""
INTERVALS = 10
"""Simulated."""
UNLIMITED_GBPS = 1e5
"""Of a pool whose link nobody told."""


@dataclass(frozen=True, slots=True)
class PoolOnLink:
    """A pool whose link is known. Shares are the mean of its units, as in `UnitOnLink`."""

    link_gbps: float
    need_gbps: float
    """With which a unit is a member of every round."""
    member_share: float
    merged_share: float
    hidden_share: float
    codec: str
    """Of its first unit; all have the same link."""
    period: float
    """It takes part in one of so many rounds."""
    advice: str
    """What would make it a member of every round; empty where its link carries all."""


def on_their_links(run: Run, assumed: Assumptions) -> dict[str, PoolOnLink]:
    """By pool, where its link is known."""
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
        fragments=run.fragments,
        interval=run.interval,
        overlap=run.overlap,
        codec=run.codec,
        communication=run.communication,
        quorum=math.ceil(run.quorum * part),
        steps=INTERVALS * run.interval,
    )
    units, _ = on_links(asked, default_rng(assumed.seed))
    found = {}
    for number, (pool, gbps) in enumerate(zip(run.pools, links, strict=True)):
        if gbps is not None:
            mine = [unit for unit, its in zip(units, pools, strict=True) if its == number]
            found[pool.name] = _mean(gbps, mine)
    return found


def _mean(gbps: float, units: list[UnitOnLink]) -> PoolOnLink:
    member, merged, hidden = (
        sum(getattr(unit, name) for unit in units) / len(units)
        for name in ("member_share", "merged_share", "hidden_share")
    )
    first = units[0]
    return PoolOnLink(gbps, first.need_gbps, member, merged, hidden, first.codec, first.period, first.advice)
