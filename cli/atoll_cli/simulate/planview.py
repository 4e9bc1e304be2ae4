"""A plan as one JSON object and as text for the terminal. docs/simulate.md explains the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from atoll_cli.simulate.output import Report, Row, finite, grid, show, words
from atoll_cli.text import amount, counted
from atoll_runtime.simulate.fleet.setting import DAY
from atoll_runtime.simulate.planner.choices import Choice
from atoll_runtime.simulate.planner.needs import seed_gbps, shard_need
from atoll_runtime.simulate.planner.run import Assumptions, Run

ELSEWHERE = ("run", "parameters", "chips", "spec", "warnings", "pools", "choice", "choices", "assumed")
"""Keys that have no line in the summary."""
POOL = ("name", "generation", "units", "chips_per_unit", "step_seconds", "step_source", "tokens_per_step",
        "interruptions_per_day", "goodput", "gbps_link")  # fmt: skip
LINK = ("name", "link_gbps", "codec", "period", "need_gbps", "member_share", "merged_share", "hidden_share")
CHOICE = ("best", "knob", "M", "K", "H", "P", "codec", "goodput", "quality_points_lost", "gbps_link",
          "seconds_to_target", "refusal")  # fmt: skip


def document(
    planned: Run,
    assumed: Assumptions,
    choices: Sequence[Choice],
    links: Mapping[str, Mapping[str, Any]],
    prices: Mapping[str, float] | None,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The whole plan. `choices`: the first is the run as it is. `links`: figures by pool, for pools with a known link.
    `prices`: dollars a chip-hour by generation. `warnings`: a line for each part of the spec that is too small."""
    expected = choices[0].expected
    told, rows = asdict(expected), [_choice(choice) for choice in choices]
    link, pools = told.pop("link"), told.pop("pools")
    cost = None
    if prices is not None:  # for every rented chip, whether it trains or not
        hourly = sum(pool.all_chips * prices[pool.generation] for pool in planned.pools)
        times = {"per_day": DAY, "to_target": expected.seconds_to_target}
        cost = {name: finite(hourly * seconds / 3600) for name, seconds in times.items()}
    return {
        "run": planned.name,
        "parameters": planned.parameters,
        "chips": planned.chips,
        "spec": planned.knobs,
        **told,
        "seconds_to_target": finite(expected.seconds_to_target),
        **link,
        "syncer_gbps_mean": planned.units * link["gbps_mean"],
        "syncer_gbps_link": planned.units * link["gbps_link"],
        "shard": shard_need(planned),
        "warnings": list(warnings),
        "cost": cost,
        "pools": [
            {**pool, "gbps_link": pool["units"] * link["gbps_link"], "link": _link(links.get(pool["name"]))}
            for pool in pools
        ],
        "choice": next(row for row in rows if row["best"]),
        "choices": rows,
        "assumed": {**asdict(assumed), "seed_gbps": seed_gbps(planned, assumed)},
    }


def report(plan: Mapping[str, Any]) -> Report:
    """The run as it is, its pools, and a row for each set of knobs that was tried."""
    facts = {words(key): show(key, value) for key, value in plan.items() if key not in ELSEWHERE}
    links = [{"name": pool["name"], **pool["link"]} for pool in plan["pools"] if pool["link"]]
    return Report(
        title=f"{plan['run']}: {amount(plan['parameters'])} parameters, {counted(plan['spec']['M'], 'unit')}, "
        f"{plan['chips']} chips",
        above=(
            *(f"{name:<{max(map(len, facts))}}  {fact}" for name, fact in facts.items()),
            "",
            grid(plan["pools"], POOL),
            *(("", grid(links, LINK)) if links else ()),
            *(
                f"{link['name']}: its link does not carry every round. What would: {link['advice']}"
                for link in links
                if link["advice"]
            ),
            "",
            "What other knobs would do:",
        ),
        columns=CHOICE,
        rows=plan["choices"],
        notes=(
            f"* {plan['choice']['reason']}",
            f"assumed: {show('assumed', plan['assumed'])}",
            *(
                f"Pool {pool} is Spot and counts as on-demand capacity: say how often a chip goes, --mtbi {pool}=7d."
                for pool in plan["assumed"]["spot_as_on_demand"]
            ),
            *plan["warnings"],
        ),
        document=plan,
    )


def _link(link: Mapping[str, Any] | None) -> Row | None:
    return link and {**link, "need_gbps": finite(link["need_gbps"])}


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
        "seconds_to_target": finite(expected.seconds_to_target),
        "fits_link": choice.fits_link,
        "refusal": choice.refusal,
        "best": choice.best,
        "reason": choice.reason,
    }
