"""Simulates the rounds of a run by the rules of syncer and learner: the share of tokens that is merged, and what the
pools' links mean. Units never fail."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import fmean
from typing import Any

from atoll_runtime.contract import OuterSpec, QuorumSpec
from atoll_runtime.simulate.fleet.links import Links, on_links
from atoll_runtime.simulate.fleet.rounds import outcome
from atoll_runtime.simulate.fleet.scenario import Scenario, Unit
from atoll_runtime.simulate.planner.needs import global_step, step_of, unit_steps
from atoll_runtime.simulate.planner.run import Assumptions, Pool, Run
from atoll_runtime.simulate.shard import Stalled

FEW_UNITS = 4
"""The most units simulated. Of more units, one stands for each quarter by speed. Twice as many change the share by less
than 0.1 %."""
FEW_FRAGMENTS = 6
"""The most fragments simulated. A fragment's share hardly depends on the number of others."""
LONGEST_INTERVAL = 48
"""The longest interval simulated. With a quorum of one and no grace it discards 2 points more than one of 96."""
FEW_INTERVALS = 16
"""Intervals simulated. In the first ones nothing is discarded, because no anchor is too old yet."""


def merged_share(run: Run, assumed: Assumptions) -> float:
    """Returns the merged share, 0…1, of the tokens that are merged or discarded.

    A step of the syncer's clock is simulated as one second, in which the exchange is hidden.
    """
    clock = global_step(run, assumed)
    paces = sorted(seconds / clock for seconds in unit_steps(run, assumed))
    count, interval = min(len(paces), FEW_UNITS), min(run.outer.interval, LONGEST_INTERVAL)
    outer = OuterSpec(
        fragments=min(run.outer.fragments, FEW_FRAGMENTS),
        interval=interval,
        overlap=min(run.outer.overlap, interval),
        guard=run.outer.guard,
        slow_factor=run.outer.slow_factor,
    )
    quorum = QuorumSpec(min=math.ceil(run.quorum.min * count / len(paces)), grace=run.quorum.grace)
    few = tuple(paces[(2 * i + 1) * len(paces) // (2 * count)] for i in range(count))
    return _simulated(few, outer, quorum)


@lru_cache(maxsize=64)
def _simulated(paces: tuple[float, ...], outer: OuterSpec, quorum: QuorumSpec) -> float:
    units = tuple(map(Unit, paces))
    found = outcome(Scenario(outer, quorum, FEW_INTERVALS * outer.interval, units), seed=0)
    return found.merged_share / (found.merged_share + sum(found.discarded.values()))


LINK_UNITS = 16
"""The most units simulated. Of more units, each pool gets its proportion, at least one."""
LINK_INTERVALS = 10
"""Intervals simulated."""
UNLIMITED_GBPS = 1e5
"""Gbit/s assumed for a pool if its link is not known."""
SHARES = ("member_share", "merged_share", "hidden_share")
"""Figures that are reported as the mean over a pool's units."""
SAME = ("need_gbps", "codec", "period", "advice")
"""Figures that are reported of a pool's first unit, because all its units have the same link."""


def links_of(run: Run, assumed: Assumptions) -> Links:
    """Returns what `on_their_links` simulates."""
    pools = _simulated_units(run)
    quorum = math.ceil(run.quorum.min * len(pools) / run.units)
    return Links(
        gbps=[assumed.link_of(pool) or UNLIMITED_GBPS for pool in pools],
        params=run.parameters,
        step_seconds=[step_of(pool, run, assumed).seconds for pool in pools],
        outer=run.outer,
        communication=run.communication,
        quorum=run.quorum.model_copy(update={"min": quorum}),
        audit=run.audit,
        steps=LINK_INTERVALS * run.outer.interval,
    )


def on_their_links(run: Run, assumed: Assumptions) -> dict[str, dict[str, Any]]:
    """Returns, by pool with a known link, the bandwidth and what it means for the units. Raises `Stalled`: no quorum of
    them comes in time."""
    if assumed.least_link(run) is None:
        return {}
    try:
        units, _ = on_links(links_of(run, assumed))
    except Stalled as error:
        slowest = min(run.pools, key=lambda pool: assumed.link_of(pool) or math.inf)
        raise Stalled(
            f"pool {slowest.name}: link: {assumed.link_of(slowest):g} Gbit/s carries too little of this model: {error}"
        ) from error
    found = {}
    for pool in run.pools:
        if (gbps := assumed.link_of(pool)) is not None:
            mine = [unit for unit, its in zip(units, _simulated_units(run), strict=True) if its is pool]
            means = {key: fmean(getattr(unit, key) for unit in mine) for key in SHARES}
            same = {key: getattr(mine[0], key) for key in SAME}
            found[pool.name] = {"link_gbps": gbps, **means, **same}
    return found


def _simulated_units(run: Run) -> list[Pool]:
    """Returns the pool of each unit that is simulated on its link."""
    part = min(1.0, LINK_UNITS / run.units)
    return [pool for pool in run.pools for _ in range(max(1, round(pool.units * part)))]
