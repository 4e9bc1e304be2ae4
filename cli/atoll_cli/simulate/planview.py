"""A plan on the terminal, and drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from atoll_cli.simulate.output import Column, Report
from atoll_cli.simulate.planjson import Plan, document, row_of
from atoll_cli.text import amount, table
from atoll_runtime.simulate.planner.choices import Choice
from atoll_runtime.simulate.planner.estimate import Expectation
from atoll_runtime.simulate.planner.heal import seed_gbps
from atoll_runtime.simulate.planner.links import PoolOnLink
from atoll_runtime.simulate.planner.run import Assumptions, Run
from atoll_runtime.simulate.planner.syncer import syncer_need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_HOURS = 1e-3
"""Chip-hours a day that are worth a word."""
NEVER = 100 * 365.25 * 86_400.0
"""Seconds."""


def report(plan: Plan) -> Report:
    """The run as it is above, and a row for each set of knobs that was tried."""
    planned, link = plan.run, plan.assumed.least_link(plan.run)
    return Report(
        title=f"{planned.name}: {amount(planned.parameters)} parameters, {planned.units} units, {planned.chips} chips",
        above=(
            *summary(plan),
            "",
            pool_table(plan.expected),
            *link_table(plan.links),
            "",
            "What other knobs would do:",
        ),
        columns=CHOICE_COLUMNS,
        rows=tuple(row_of(choice) for choice in plan.choices),
        notes=(
            f"* {plan.best.reason}",
            assumptions(planned, plan.assumed),
            *(as_on_demand(pool) for pool in plan.spot),
            *plan.warnings,
        ),
        draw=lambda figure: draw(figure, planned.name, plan.choices, link),
        document=document(plan),
    )


def summary(plan: Plan) -> list[str]:
    """The run as it is, a line for each thing to expect."""
    planned, expected = plan.run, plan.expected
    link, saved, syncer = expected.link, expected.checkpoints, syncer_need(planned)
    low, high = expected.interval
    hours = sorted(expected.lost_chip_hours.items(), key=lambda item: -item[1])
    stages = dataclasses.asdict(expected.heal).items()
    facts = {
        "goodput": f"{percent(expected.goodput)} ({percent(low)} to {percent(high)})",
        "uptime": f"{percent(expected.uptime)}; fewer than K={planned.quorum} units live "
        f"{percent(expected.below_quorum)} of the time",
        "interrupted": f"{expected.interruptions_per_day:.3g} times a day",
        "lost a day": "chip-hours: "
        + (
            ", ".join(f"{_words(cause)} {lost:.3g}" for cause, lost in hours if lost >= LEAST_HOURS) or "none"
        ),
        "heal": f"{duration(expected.heal.total)}: "
        + ", ".join(f"{_words(stage)} {duration(value)}" for stage, value in stages if value),
        "a unit's link": f"{link.gbps_link:.3g} Gbit/s each way; mean {link.gbps_mean:.3g}, one fragment's peak "
        f"{link.gbps_peak:.3g}, both ways {link.gbps_both_directions:.3g}",
        "syncer's link": f"{planned.units * link.gbps_link:.3g} Gbit/s each way, mean "
        f"{planned.units * link.gbps_mean:.3g}",
        "a shard": f"{amount(syncer.memory, 'B')} of memory, {amount(syncer.volume, 'B')} of volume",
        "checkpoints": f"every {duration(saved.seconds_between_cuts)} {amount(saved.cut_bytes, 'B')}, and "
        f"{amount(saved.moments_bytes, 'B')} of the units' moments; {amount(saved.bytes_per_day, 'B')} a day, "
        f"{saved.gbps:.3g} Gbit/s",
        "clock": f"{duration(expected.step_seconds)} a global step; {amount(expected.tokens_per_second)} tokens/s "
        f"merged, {percent(expected.merged_share)} of those trained",
        "target": duration(expected.seconds_to_target),
    }
    if plan.cost is not None:
        whole = plan.cost["to_target"]
        end = "no end" if whole is None else f"${whole:,.2f} to the target"
        facts["cost"] = f"${plan.cost['per_day']:,.2f} a day, {end}"
    return [f"{name:<{max(map(len, facts))}}  {fact}" for name, fact in facts.items()]


def pool_table(expected: Expectation) -> str:
    """A line for each pool."""
    head = ("POOL", "CHIPS", "STEP", "TOKENS/STEP", "INTERRUPTED A DAY", "GOODPUT", "LINKS")
    rows = [
        (
            each.pool.name,
            f"{each.pool.units} × {each.pool.chips} {each.pool.generation}",
            f"{duration(each.step.seconds)} ({each.step.source})",
            f"{each.step.tokens:,}",
            f"{each.interruptions_per_day:.3g}",
            percent(each.goodput),
            f"{each.pool.units * expected.link.gbps_link:.3g} Gbit/s",
        )
        for each in expected.pools
    ]
    return table(head, rows)


def link_table(links: Mapping[str, PoolOnLink]) -> list[str]:
    """A line for each pool whose link is known."""
    head = ("POOL", "LINK", "CODEC", "ONE ROUND IN", "EVERY ROUND NEEDS", "MEMBER OF ROUNDS", "TOKENS MERGED",
            "TIME IN STEPS")  # fmt: skip
    rows = [
        (name, f"{each.link_gbps:.3g} Gbit/s", each.codec, f"{each.period:.3g}", f"{each.need_gbps:.3g} Gbit/s",
         *map(percent, (each.member_share, each.merged_share, each.hidden_share)))
        for name, each in links.items()
    ]  # fmt: skip
    advice = [
        f"{name}: its link does not carry every round. What would: {each.advice}"
        for name, each in links.items()
        if each.advice
    ]
    return ["", table(head, rows), *advice] if rows else []


def assumptions(planned: Run, assumed: Assumptions) -> str:
    """What the figures stand on."""
    pools = "".join(f", in pool {pool} in {duration(value)}" for pool, value in assumed.pool_mtbi.items())
    return (
        f"Assumed: a chip is interrupted once in {duration(assumed.mtbi)}{pools}; MFU {assumed.mfu:g}; "
        f"a healing unit's state comes at {seed_gbps(planned, assumed):g} Gbit/s ({planned.seed}); "
        f"a lost slice is back in {duration(assumed.repair_seconds)}."
    )


def as_on_demand(pool: str) -> str:
    """Of Spot capacity without a figure of its own, which nobody publishes."""
    return f"Pool {pool} is Spot and counts as on-demand capacity here: say how often a chip goes, --mtbi {pool}=7d."


def duration(value: float) -> str:
    """`12 ms`, `0.62 s`, `12.5 min`, `3.4 h`, `12.0 d`."""
    if value > NEVER:
        return "never"
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{1000 * value:.3g} ms" if value < 0.1 else f"{value:.3g} s"


def draw(figure: Figure, name: str, choices: Sequence[Choice], link_gbps: float | None) -> None:
    """Goodput and what a unit's link must carry, a bar for each set of knobs; the best one is dark."""
    goodput, link = figure.subplots(1, 2, sharey=True)
    labels = [
        f"{choice.knob}:  M={choice.run.units} K={choice.run.quorum} H={choice.run.interval} {choice.run.codec}"
        for choice in choices
    ]
    places = range(len(choices))
    colours = [
        "tab:blue" if choice.best else "lightgrey" if choice.refusal else "lightsteelblue"
        for choice in choices
    ]
    goodput.barh(places, [100 * choice.expected.goodput for choice in choices], color=colours)
    link.barh(places, [choice.expected.link.gbps_link for choice in choices], color=colours)
    if link_gbps is not None:
        link.axvline(link_gbps, linestyle="--", color="black", linewidth=1)
    goodput.set_yticks(places, labels, fontsize=7)
    goodput.invert_yaxis()
    goodput.set(xlabel="goodput, %")
    link.set(xlabel="Gbit/s of a unit's link, each way")
    figure.suptitle(f"Knobs of {name}")


def percent(value: float) -> str:
    """`98.03 %`."""
    return f"{100 * value:.2f} %"


def _words(key: str) -> str:
    return key.replace("_", " ")


def _marked(best: bool) -> str:
    return "*" if best else ""


CHOICE_COLUMNS: tuple[Column, ...] = (
    Column("best", "", _marked),
    Column("knob", "TURNED"),
    *(Column(symbol, symbol) for symbol in ("M", "K", "H", "P")),
    Column("codec", "CODEC"),
    Column("goodput", "GOODPUT", percent),
    Column("quality_points_lost", "QUALITY LOST", lambda points: f"{points:.1f}"),
    Column("gbps_link", "GBIT/S", lambda gbps: f"{gbps:.3g}"),
    Column("seconds_to_target", "TO THE TARGET", duration),
    Column("refusal", "CANNOT BE"),
)
