"""A plan as JSON; the keys are explained in docs/simulate.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atoll_runtime.simulate.fleet.setting import DAY
from atoll_runtime.simulate.planner.choices import Choice
from atoll_runtime.simulate.planner.estimate import Expectation, PoolEstimate
from atoll_runtime.simulate.planner.heal import seed_gbps
from atoll_runtime.simulate.planner.links import PoolOnLink
from atoll_runtime.simulate.planner.run import Assumptions, Run
from atoll_runtime.simulate.planner.syncer import syncer_need


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is told of a run."""

    run: Run
    assumed: Assumptions
    prices: Mapping[str, float] | None
    """Dollars a chip-hour by generation."""
    choices: Sequence[Choice]
    """The first is the run as it is."""
    links: Mapping[str, PoolOnLink]
    """By pool, where its link is known."""
    spot: Sequence[str]
    """Pools of Spot capacity of which nobody said how often they are interrupted."""
    warnings: Sequence[str]
    """What of the spec will not do."""

    @property
    def expected(self) -> Expectation:
        """Of the run as it is."""
        return self.choices[0].expected

    @property
    def best(self) -> Choice:
        return next(choice for choice in self.choices if choice.best)

    @property
    def cost(self) -> dict[str, float | None] | None:
        """Dollars a day and until the target, or None without prices."""
        if self.prices is None:
            return None
        whole = self.run.cost(self.prices, self.expected.seconds_to_target)
        return {"per_day": self.run.cost(self.prices, DAY), "to_target": finite(whole)}


def document(plan: Plan) -> dict[str, Any]:
    """The whole plan as one object; its keys are in docs/simulate.md."""
    planned, expected, link = plan.run, plan.expected, plan.expected.link
    return {
        "run": planned.name,
        "parameters": planned.parameters,
        "chips": planned.chips,
        "spec": knobs(planned),
        "goodput": expected.goodput,
        "interval": list(expected.interval),
        "uptime": expected.uptime,
        "below_quorum": expected.below_quorum,
        "interruptions_per_day": expected.interruptions_per_day,
        "lost_chip_hours_per_day": expected.lost_chip_hours,
        "step_seconds": expected.step_seconds,
        **asdict(link),
        "syncer_gbps_mean": planned.units * link.gbps_mean,
        "syncer_gbps_link": planned.units * link.gbps_link,
        "shard": asdict(syncer_need(planned)),
        "warnings": list(plan.warnings),
        "checkpoint": {**asdict(expected.checkpoints), "gbps": expected.checkpoints.gbps},
        "heal_seconds": {**asdict(expected.heal), "total": expected.heal.total},
        "merged_share": expected.merged_share,
        "tokens_per_second": expected.tokens_per_second,
        "seconds_to_target": finite(expected.seconds_to_target),
        "cost": plan.cost,
        "pools": [
            pool_document(pool, link.gbps_link, plan.links.get(pool.pool.name)) for pool in expected.pools
        ],
        "choice": row_of(plan.best),
        "choices": [row_of(choice) for choice in plan.choices],
        "assumed": {
            **asdict(plan.assumed),
            "seed_gbps": seed_gbps(planned, plan.assumed),
            "spot_as_on_demand": list(plan.spot),
        },
    }


def pool_document(pool: PoolEstimate, gbps_link: float, on_link: PoolOnLink | None) -> dict[str, Any]:
    """One pool as JSON."""
    return {
        "name": pool.pool.name,
        "generation": pool.pool.generation,
        "units": pool.pool.units,
        "chips_per_unit": pool.pool.chips,
        "chips": pool.pool.all_chips,
        "step_seconds": pool.step.seconds,
        "step_source": pool.step.source,
        "tokens_per_step": pool.step.tokens,
        "interruptions_per_day": pool.interruptions_per_day,
        "live": pool.live,
        "goodput": pool.goodput,
        "interval": list(pool.interval),
        "lost_chip_hours_per_day": dict(pool.lost_chip_hours),
        "gbps_link": pool.pool.units * gbps_link,
        "link": None if on_link is None else asdict(on_link),
    }


def knobs(planned: Run) -> dict[str, Any]:
    """What can be chosen, by the paper's symbols."""
    return {
        "M": planned.units,
        "K": planned.quorum,
        "H": planned.interval,
        "P": planned.fragments,
        "tau": planned.overlap,
        "codec": planned.codec,
    }


def row_of(choice: Choice) -> dict[str, Any]:
    """One set of knobs as JSON."""
    expected = choice.expected
    return {
        "knob": choice.knob,
        **knobs(choice.run),
        "chips_per_unit": {pool.name: pool.chips for pool in choice.run.pools},
        "goodput": expected.goodput,
        "interval": list(expected.interval),
        "quality_points_lost": choice.points_lost,
        "gbps_link": expected.link.gbps_link,
        "gbps_mean": expected.link.gbps_mean,
        "seconds_to_target": finite(expected.seconds_to_target),
        "fits_link": choice.fits_link,
        "refusal": choice.refusal,
        "best": choice.best,
        "reason": choice.reason,
    }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
