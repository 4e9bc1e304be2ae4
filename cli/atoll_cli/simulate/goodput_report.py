"""Goodput of one fleet, and the published table beside ours; the cells that are not published are predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from atoll_cli.simulate.output import Column, Report
from atoll_runtime.contract import GraceSpec, OuterSpec
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.fleet import merging
from atoll_runtime.simulate.fleet.account import CAUSES
from atoll_runtime.simulate.fleet.goodput import Case, estimate
from atoll_runtime.simulate.fleet.published import CALIBRATED, GRID, PUBLISHED
from atoll_runtime.simulate.fleet.setting import DAY, Fleet, Recovery

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cases(fleet: Fleet, recovery: Recovery, seconds: float, seed: int, repeats: int) -> list[Case]:
    """Every cell of the grid, with what is not a cell's own taken from `fleet`."""
    return [
        Case(
            fleet=replace(fleet, chips=cell.chips, learners=cell.learners),
            method=cell.method,
            recovery=recovery,
            seconds=seconds,
            seed=seed,
            repeats=repeats,
        )
        for cell in GRID
    ]


def published(asked: Sequence[Case]) -> Report:
    """A row for each cell of the grid; the notes say how far off the known ones are together."""
    rows: list[dict[str, Any]] = []
    for cell, case, answer in zip(GRID, asked, estimate(asked), strict=True):
        percent = PUBLISHED.get(cell)
        rows.append(
            {
                "method": cell.method,
                "learners": cell.learners,
                "chips": cell.chips,
                "published": None if percent is None else percent / 100,
                "goodput": answer.goodput,
                "interval": list(answer.interval),
                "error_points": None if percent is None else 100 * answer.goodput - percent,
                "calibrates": CALIBRATED.get(cell),
                "uptime": answer.uptime,
                "constants": constants(case),
            }
        )
    known = [row for row in rows if row["published"] is not None]
    errors = [abs(row["error_points"]) for row in known]
    predicted = [abs(row["error_points"]) for row in known if row["calibrates"] is None]
    return Report(
        title="Goodput, published and simulated",
        columns=(
            Column("method", "METHOD"),
            Column("learners", "M"),
            Column("chips", "CHIPS", lambda chips: f"{chips:,}"),
            Column("published", "PUBLISHED", lambda share: f"{share:.0%}"),
            Column("goodput", "SIMULATED", lambda share: f"{share:.1%}"),
            Column("interval", "95 %", lambda pair: f"{pair[0]:.1%} to {pair[1]:.1%}"),
            Column("error_points", "ERROR", lambda points: f"{points:+.1f}"),
            Column("calibrates", "CALIBRATES"),
            Column("uptime", "UPTIME", lambda share: f"{share:.1%}"),
        ),
        rows=tuple(rows),
        notes=(
            f"{len(errors)} published cells: mean error {fmean(errors):.1f} points, largest {max(errors):.1f}; "
            f"of the {len(predicted)} that calibrate nothing: {fmean(predicted):.1f} and {max(predicted):.1f}.",
            f"Constants, times in seconds, one set for every cell: {in_words(constants(asked[0]))}. "
            f"{asked[0].repeats} runs of {asked[0].seconds / DAY:g} days, a chip is interrupted every "
            f"{asked[0].fleet.mtbi_seconds / DAY:g} days.",
        ),
        draw=lambda figure: _draw(figure, rows),
    )


def _draw(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    axes = figure.add_subplot()
    lines = dict.fromkeys((row["method"], row["learners"]) for row in rows)
    for number, (method, learners) in enumerate(lines):
        own = [row for row in rows if (row["method"], row["learners"]) == (method, learners)]
        name = method if learners == 1 else f"{method}, M={learners}"
        colour = f"C{number}"
        chips = [row["chips"] for row in own]
        low, high = ([100 * row["interval"][end] for row in own] for end in (0, 1))
        axes.plot(chips, [100 * row["goodput"] for row in own], color=colour, label=name)
        axes.fill_between(chips, low, high, color=colour, alpha=0.25, lw=0)
        for row in own:
            if row["published"]:
                marker = "o" if row["calibrates"] is None else "s"
                axes.plot(row["chips"], 100 * row["published"], marker, color=colour, markersize=6)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chips, [f"{count / 1000:g}k" if count < 1e6 else f"{count / 1e6:g}M" for count in chips])
    axes.set(xlabel="chips", ylabel="goodput, %", ylim=(0, 101))
    axes.grid(alpha=0.3)
    axes.set_title(
        "Lines: simulated. Dots: published, squares: published and used to calibrate", fontsize="medium"
    )
    axes.legend(fontsize="small", loc="lower left")


def report(case: Case, grace: str | None) -> Report:
    """One fleet."""
    found = estimate([case])[0]
    row = {
        "method": case.method,
        "chips": case.fleet.chips,
        "learners": case.fleet.learners,
        "goodput": found.goodput,
        "uptime": found.uptime,
        "grace": grace,
        "merged_share": None if grace is None else _merged_share(case.fleet, grace),
        "interval": list(found.interval),
        "mtbi": case.fleet.mtbi_seconds,
        "days": case.seconds / 86_400,
        "seed": case.seed,
        "repeats": case.repeats,
        "allocated_chips": found.allocated_chips,
        "interruptions_a_day": found.interruptions_a_day,
        "share": dict(found.share),
        "lost_chip_hours_a_day": {
            cause: found.chip_hours_a_day(cause) for cause in CAUSES if cause != "useful"
        },
        "constants": constants(case),
    }
    spent = [cause for cause in CAUSES if found.share[cause] > 0]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        shown = [cause for cause in spent if cause != "useful"]
        axes.barh([CAUSES[cause] for cause in shown], [100 * found.share[cause] for cause in shown])
        axes.invert_yaxis()
        axes.set_xlabel("lost, % of allocated chip-time")
        axes.set_title(
            f"{case.method}, {case.fleet.chips:,} chips, M={case.fleet.learners}: {found.goodput:.1%}"
        )

    return Report(
        title="Goodput: useful training's share of allocated chip-time",
        columns=(
            Column("method", "METHOD"),
            Column("learners", "M"),
            Column("chips", "CHIPS", "{:,}".format),
            Column("goodput", "GOODPUT", "{:.2%}".format),
            Column("interval", "95 %", lambda pair: f"{pair[0]:.2%} to {pair[1]:.2%}"),
            Column("uptime", "UPTIME", "{:.2%}".format),
            Column("merged_share", "MERGED", "{:.1%}".format),
            Column("interruptions_a_day", "INTERRUPTIONS/DAY", "{:,.0f}".format),
        ),
        rows=(row,),
        notes=(
            "  SHARE  CHIP-HOURS/DAY  SPENT ON",
            *(
                f"{found.share[cause]:7.2%}  {found.chip_hours_a_day(cause):14,.0f}  {CAUSES[cause]}"
                for cause in spent
            ),
            f"constants, times in seconds: {in_words(constants(case))}",
        ),
        draw=draw,
    )


def _merged_share(fleet: Fleet, grace: str) -> float:
    """0…1, of the tokens of learners that are present, with the published P, H and τ."""
    outer, spec, kinds = OuterSpec(), GraceSpec(), len(fleet.speeds)
    rules = Rules(
        fragments=outer.fragments,
        interval=outer.interval,
        overlap=outer.overlap,
        quorum=fleet.quorum,
        grace_fraction=spec.fraction if grace == "auto" else 0.0,
        grace_steps=spec.max_steps,
        target_steps=None,
        target_tokens=None,
    )
    speeds = [fleet.speeds[number * kinds // fleet.learners] for number in range(fleet.learners)]
    return merging.merged_share(speeds, rules, fleet.jitter)


def constants(case: Case) -> dict[str, Any]:
    """All that an answer rests on, besides the question's own values; times in seconds."""
    own = ("chips", "learners", "mtbi_seconds")
    fleet = {name: value for name, value in asdict(case.fleet).items() if name not in own}
    unit = case.method == "unit"
    heal = {f"heal_{name}": value for name, value in asdict(case.heal).items()} if unit else {}
    return {**fleet, **asdict(case.recovery), **heal}


def in_words(used: Mapping[str, Any]) -> str:
    """Constants in one line."""
    shown = {
        name: "/".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))
        for name, value in used.items()
        if value is not None
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items())
