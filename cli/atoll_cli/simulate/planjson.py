"""A plan as one object; its keys are explained in docs/simulate.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atoll_runtime.simulate.fleet.setting import DAY
from atoll_runtime.simulate.planner.choices import Choice
from atoll_runtime.simulate.planner.heal import seed_gbps
from atoll_runtime.simulate.planner.run import Assumptions, Run
from atoll_runtime.simulate.planner.state import shard_need


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is told of a run."""

    run: Run
    assumed: Assumptions
    prices: Mapping[str, float] | None
    """Dollars a chip-hour by generation."""
    choices: Sequence[Choice]
    """The first is the run as it is."""
    links: Mapping[str, Mapping[str, Any]]
    """By pool, where its link is known."""
    spot: Sequence[str]
    """Pools of Spot capacity of which nobody said how often they are interrupted."""
    warnings: Sequence[str]
    """What of the spec will not do."""

    def dollars(self, seconds: float) -> float | None:
        """Of every rented chip, whether it trains or heals; None where there is no end."""
        prices = self.prices or {}
        hourly = sum(pool.all_chips * prices[pool.generation] for pool in self.run.pools)
        return _finite(hourly * seconds / 3600)


def document(plan: Plan) -> dict[str, Any]:
    """The whole plan."""
    planned, expected = plan.run, plan.choices[0].expected
    told, rows = asdict(expected), [_choice(choice) for choice in plan.choices]
    link, pools = told.pop("link"), told.pop("pools")
    cost = {"per_day": DAY, "to_target": expected.seconds_to_target}
    return {
        "run": planned.name,
        "parameters": planned.parameters,
        "chips": planned.chips,
        "spec": planned.knobs,
        **told,
        "seconds_to_target": _finite(expected.seconds_to_target),
        **link,
        "syncer_gbps_mean": planned.units * link["gbps_mean"],
        "syncer_gbps_link": planned.units * link["gbps_link"],
        "shard": asdict(shard_need(planned)),
        "warnings": list(plan.warnings),
        "cost": plan.prices and {name: plan.dollars(seconds) for name, seconds in cost.items()},
        "pools": [
            {**pool, "gbps_link": pool["units"] * link["gbps_link"], "link": plan.links.get(pool["name"])}
            for pool in pools
        ],
        "choice": next(row for row in rows if row["best"]),
        "choices": rows,
        "assumed": {
            **asdict(plan.assumed),
            "seed_gbps": seed_gbps(planned, plan.assumed),
            "spot_as_on_demand": list(plan.spot),
        },
    }


def _choice(choice: Choice) -> dict[str, Any]:
    """One set of knobs."""
    expected = choice.expected
    return {
        "knob": choice.knob,
        **choice.run.knobs,
        "chips_per_unit": {pool.name: pool.chips for pool in choice.run.pools},
        "goodput": expected.goodput,
        "interval": list(expected.interval),
        "quality_points_lost": choice.points_lost,
        "gbps_link": expected.link.gbps_link,
        "gbps_mean": expected.link.gbps_mean,
        "seconds_to_target": _finite(expected.seconds_to_target),
        "fits_link": choice.fits_link,
        "refusal": choice.refusal,
        "best": choice.best,
        "reason": choice.reason,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
