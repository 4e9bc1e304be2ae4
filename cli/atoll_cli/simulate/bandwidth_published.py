"""The published figures on bandwidth beside ours, as a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from atoll_cli.simulate.output import Column, Report, as_gbps, as_share
from atoll_runtime.simulate.wan.published import DECOUPLED, GRID_RATIO, comparisons

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SAME = 0.07
"""Relative: the published values have two digits or three, and a point of the grid is 21 % from the next."""


def published() -> Report:
    """A row for each figure; the notes say how far off they are together."""
    found = comparisons()
    steps = [abs(each.grid_steps) for each in found if each.grid_steps is not None]
    signed = [each.grid_steps for each in found if each.grid_steps is not None]
    errors = [abs(each.error) for each in found if each.grid_steps is None]
    same = [abs(each.on_grid / each.published - 1) < SAME for each in found if each.on_grid is not None]
    columns = (
        Column("figure", "FIGURE"),
        Column("utilization", "UTILIZATION", as_share),
        Column("range", "PUBLISHED"),
        Column("computed", "COMPUTED", as_gbps),
        Column("unit", "UNIT"),
        Column("error", "ERROR", lambda value: f"{100 * value:+.1f} %"),
        Column("grid_steps", "GRID STEPS", lambda value: f"{value:+.2f}"),
        Column("on_grid", "ON THE GRID", as_gbps),
    )
    notes = (
        f"Table 4: {sum(step <= 1 for step in steps)} of {len(steps)} cells within one step of its grid "
        f"({100 * (GRID_RATIO - 1):.0f} %), mean distance {sum(steps) / len(steps):.2f}, largest "
        f"{max(steps):.2f}, mean with its sign {sum(signed) / len(signed):+.2f} steps. "
        f"Taken down to the grid, {sum(same)} of {len(same)} are the published ones.",
        f"Decoupled: mean error {100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %. "
        f"Taken: {DECOUPLED}.",
    )
    rows = tuple({**asdict(each), "range": _range(asdict(each))} for each in found)
    return Report("Bandwidth, published and computed", columns, rows, notes, _draw)


def _range(row: Mapping[str, Any]) -> str:
    if row["published_most"] is None:
        return f"> {row['published']:g}"
    if row["published_most"] > row["published"]:
        return f"{row['published']:g}-{row['published_most']:g}"
    return f"{row['published']:g}"


def _draw(figure: Figure) -> None:
    from atoll_cli.simulate.bandwidth_chart import draw_published

    draw_published(figure)
