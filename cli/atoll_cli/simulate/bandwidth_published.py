"""The published figures on bandwidth beside ours, and the drawings: compute utilisation over bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from atoll_cli.simulate.output import Column, Report, as_gbps, as_share
from atoll_runtime.simulate.wan.bandwidth import need, utilization
from atoll_runtime.simulate.wan.link import SYNCHRONOUS_BITS
from atoll_runtime.simulate.wan.published import (
    DECOUPLED,
    GRID_RATIO,
    TABLE_4,
    UTILIZATIONS,
    comparisons,
    table_4_traffic,
)
from atoll_runtime.simulate.wan.traffic import Method, Traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 80
"""Of a curve."""
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
    return Report("Bandwidth, published and computed", columns, rows, notes, draw_published)


def _range(row: Mapping[str, Any]) -> str:
    if row["published_most"] is None:
        return f"> {row['published']:g}"
    if row["published_most"] > row["published"]:
        return f"{row['published']:g}-{row['published_most']:g}"
    return f"{row['published']:g}"


def draw_published(figure: Figure) -> None:
    """Table 4 of Streaming DiLoCo, a panel for each model; decoupled beside it at the same step time."""
    panels = figure.subplots(1, len(TABLE_4), sharey=True)
    for axes, (model, rows) in zip(panels, TABLE_4.items(), strict=True):
        span = (0.1, 1000.0)
        for number, (method, bits, cells) in enumerate(rows):
            traffic = table_4_traffic(model, bits)
            colour = f"C{number}"
            _curve(axes, method, traffic, span, colour, _label(method, bits))
            axes.plot(cells, [100 * share for share in UTILIZATIONS], "o", color=colour, markersize=4)
        _decoupled(axes, table_4_traffic(model, 4), span)
        _frame(axes, f"{model[0]}, {model[2]:g} s steps; points: published")
    panels[0].set_ylabel("compute utilisation, %")
    panels[0].legend(fontsize="x-small", loc="lower right")


def draw_case(figure: Figure, traffic: Traffic, row: Mapping[str, Any]) -> None:
    """All methods at the traffic that was asked for, and the need that was found."""
    axes = figure.subplots()
    traffic = replace(traffic, step_seconds=row["step_seconds"])
    others = replace(traffic, interval=None, fragments=None, overlap=None, sizes=None)
    synchronous = replace(others, bits=SYNCHRONOUS_BITS)
    asked = Method(row["method"])
    span = (row["gbps_mean"] / 30, row["gbps_link"] * 300) if row["gbps_link"] else (0.1, 1000.0)
    for number, method in enumerate(Method):
        wide = method in (Method.DATA_PARALLEL, Method.DILOCO)
        case = traffic if method is asked else synchronous if wide else others
        if method is Method.DECOUPLED:
            _decoupled(axes, case, span)
        else:
            _curve(axes, method, case, span, f"C{number}", _label(method, case.bits))
    if row["gbps_link"]:
        axes.plot([row["gbps_link"]], [100 * row["utilization"]], "k*", markersize=11, label="need")
    _frame(
        axes,
        f"{traffic.params / 1e9:.4g}B parameters, {traffic.step_seconds:.3g} s steps, {traffic.sites} sites",
    )
    axes.set_ylabel("compute utilisation, %")
    axes.legend(fontsize="small", loc="lower right")


def _curve(
    axes: Axes, method: Method, traffic: Traffic, span: tuple[float, float], colour: str, label: str
) -> None:
    low, high = span
    rates = [low * (high / low) ** (point / (POINTS - 1)) for point in range(POINTS)]
    axes.plot(
        rates, [100 * utilization(method, traffic, rate) for rate in rates], color=colour, lw=1.2, label=label
    )


def _decoupled(axes: Axes, traffic: Traffic, span: tuple[float, float]) -> None:
    """Learners never wait; drawn from the bandwidth on at which every fragment is there in time."""
    try:
        link = need(Method.DECOUPLED, traffic).gbps_link or span[0]
    except ValueError:  # the latency is longer than the overlap: no bandwidth keeps the schedule
        return
    axes.plot([link, span[1]], [100, 100], "k:", lw=1.5)
    axes.plot([link], [100], "k|", markersize=10, label=_label(Method.DECOUPLED, traffic.bits))


def _label(method: Method, bits: float) -> str:
    return f"{method}, {bits:g} bits"


def _frame(axes: Axes, title: str) -> None:
    axes.set(xscale="log", ylim=(0, 105), xlabel="Gbit/s of a site's link, one direction")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
