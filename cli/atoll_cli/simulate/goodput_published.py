"""The published goodput table beside ours, as a report; the cells that are not known here are predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from atoll_cli.simulate.goodput_constants import constants, in_words
from atoll_cli.simulate.output import Column, Report
from atoll_runtime.simulate.fleet.goodput import Case, estimate
from atoll_runtime.simulate.fleet.published import CALIBRATED, GRID, PUBLISHED
from atoll_runtime.simulate.fleet.setting import DAY, Fleet, Recovery

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cases(fleet: Fleet, recovery: Recovery, days: float, seed: int, repeats: int) -> list[Case]:
    """Every cell of the grid, with what is not a cell's own taken from `fleet`."""
    return [
        Case(
            fleet=replace(fleet, chips=cell.chips, learners=cell.learners),
            method=cell.method,
            recovery=recovery,
            seconds=days * DAY,
            seed=seed,
            repeats=repeats,
        )
        for cell in GRID
    ]


def published(asked: Sequence[Case]) -> Report:
    """A row for each cell of the grid; the notes say how far off the known ones are together."""
    rows: list[dict[str, Any]] = []
    for cell, case, answer in zip(GRID, asked, estimate(asked), strict=True):
        known = PUBLISHED.get(cell)
        rows.append(
            {
                "method": cell.method,
                "learners": cell.learners,
                "chips": cell.chips,
                "published": None if known is None else known / 100,
                "goodput": answer.goodput,
                "interval": list(answer.interval),
                "error_points": None if known is None else 100 * answer.goodput - known,
                "calibrates": CALIBRATED.get(cell),
                "uptime": answer.uptime,
                "constants": constants(case),
            }
        )
    errors = [abs(row["error_points"]) for row in rows if row["error_points"] is not None]
    predicted = [
        abs(row["error_points"])
        for row in rows
        if row["error_points"] is not None and row["calibrates"] is None
    ]
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
        axes.plot(chips, [100 * row["goodput"] for row in own], color=colour, label=name)
        axes.fill_between(
            chips,
            [100 * row["interval"][0] for row in own],
            [100 * row["interval"][1] for row in own],
            color=colour,
            alpha=0.25,
            lw=0,
        )
        for used, marker in ((False, "o"), (True, "s")):
            points = [row for row in own if row["published"] and (row["calibrates"] is not None) == used]
            axes.plot(
                [row["chips"] for row in points],
                [100 * row["published"] for row in points],
                marker,
                color=colour,
                markersize=6,
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(chips, [f"{count / 1000:g}k" if count < 1e6 else f"{count / 1e6:g}M" for count in chips])
    axes.set_xlabel("chips")
    axes.set_ylabel("goodput, %")
    axes.set_ylim(0, 101)
    axes.grid(alpha=0.3)
    axes.set_title(
        "Lines: simulated. Dots: published, squares: published and used to calibrate", fontsize="medium"
    )
    axes.legend(fontsize="small", loc="lower left")
