"""A plan's object on the terminal: the run as it is, its pools, and a row for each set of knobs that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll_cli.simulate.output import Report, grid, show, words
from atoll_cli.text import amount

ELSEWHERE = ("run", "parameters", "chips", "spec", "warnings", "pools", "choice", "choices", "assumed")
"""Keys that are no line of the summary."""
POOL = ("name", "generation", "units", "chips_per_unit", "step_seconds", "step_source", "tokens_per_step",
        "interruptions_per_day", "goodput", "gbps_link")  # fmt: skip
LINK = ("name", "link_gbps", "codec", "period", "need_gbps", "member_share", "merged_share", "hidden_share")
CHOICE = ("best", "knob", "M", "K", "H", "P", "codec", "goodput", "quality_points_lost", "gbps_link",
          "seconds_to_target", "refusal")  # fmt: skip


def report(plan: Mapping[str, Any]) -> Report:
    """Of the object that `--json` prints."""
    facts = {words(key): show(key, value) for key, value in plan.items() if key not in ELSEWHERE}
    links = [{"name": pool["name"], **pool["link"]} for pool in plan["pools"] if pool["link"]]
    return Report(
        title=f"{plan['run']}: {amount(plan['parameters'])} parameters, {plan['spec']['M']} units, "
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
