"""Policies beyond the paper beside each other, as a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll_cli.simulate.output import Column, Report
from atoll_runtime.simulate.fleet.account import CAUSES
from atoll_runtime.simulate.fleet.goodput import Case
from atoll_runtime.simulate.fleet.policies import PolicyRow, compare, finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PUBLISHED = 0.88
"""Goodput at 1.2M chips and M=8."""


def policies(asked: Sequence[Case]) -> Report:
    """A row for each policy; the finding stands below."""
    found = compare(asked)
    rows = tuple(
        {
            "policy": row.policy.name,
            "method": row.policy.method,
            "learners": row.policy.learners,
            "goodput": row.estimate.goodput,
            "interval": list(row.estimate.interval),
            "goodput_eager": row.eager.goodput,
            "uptime": row.estimate.uptime,
            "what_if": row.policy.what_if,
            "extra_chips": row.extra_chips,
            "gbps": row.gbps,
            "lost_chip_hours_a_day": {
                cause: row.estimate.chip_hours_a_day(cause) for cause in CAUSES if cause != "useful"
            },
        }
        for row in found
    )
    return Report(
        title="Goodput at 1.2M chips, one interruption a chip and year, by policy",
        columns=(
            Column("policy", "POLICY"),
            Column("learners", "M"),
            Column("goodput", "GOODPUT", lambda share: f"{share:.1%}"),
            Column("interval", "95 %", lambda pair: f"{pair[0]:.1%} to {pair[1]:.1%}"),
            Column("goodput_eager", "EAGER", lambda share: f"{share:.1%}"),
            Column("extra_chips", "MORE CHIPS", lambda chips: f"{chips:,.0f}"),
            Column("gbps", "SYNCER GBIT/S", lambda gbps: f"{gbps:,.0f}"),
            Column("lost_chip_hours_a_day", "CHIP-HOURS A DAY LOST TO", _worst),
            Column("what_if", "", lambda flag: "what if" if flag else ""),
        ),
        rows=rows,
        notes=(
            *finding(found),
            "EAGER: the other set of constants that reproduces the published table. What if: a bound, no design.",
        ),
        draw=lambda figure: _draw(figure, found),
    )


def _worst(lost: dict[str, float]) -> str:
    largest = sorted(lost.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{cause} {hours:,.0f}" for cause, hours in largest if hours >= 1)


def _draw(figure: Figure, rows: Sequence[PolicyRow]) -> None:
    left, right = figure.subplots(1, 2)
    _spend(left, [row for row in rows if row.policy.learners == 8])
    for name in dict.fromkeys(row.policy.name for row in rows):
        own = [
            row
            for row in rows
            if row.policy.name in (name, "as published" if name.startswith("smaller") else name)
        ]
        if len(own) > 1:
            style = "--" if own[-1].policy.what_if else "-"
            right.plot(
                [row.policy.learners for row in own],
                [100 * row.estimate.goodput for row in own],
                style,
                marker=".",
                label=f"{name} (what if)" if own[-1].policy.what_if else name,
            )
    right.axhline(100 * PUBLISHED, color="k", lw=0.8, ls=":", label="published, M=8")
    counts = {row.policy.learners: row.gbps for row in rows}
    right.set_xscale("log", base=2)
    right.set_xticks(list(counts), [f"{count}\n{gbps:.0f}" for count, gbps in counts.items()])
    right.set_xlabel("learners M, and Gbit/s into the syncer")
    right.set_ylabel("goodput, %")
    right.legend(fontsize="x-small", loc="lower right")
    right.grid(alpha=0.3)


def _spend(axes: Axes, rows: Sequence[PolicyRow]) -> None:
    """Bars of the losses at M=8."""
    names = [f"{row.policy.name} (what if)" if row.policy.what_if else row.policy.name for row in rows]
    base = [0.0] * len(rows)
    for cause in CAUSES:
        lost = [100 * row.estimate.share[cause] for row in rows]
        if cause == "useful" or max(lost) < 0.1:
            continue
        axes.barh(names, lost, left=base, label=cause.replace("_", " "))
        base = [before + more for before, more in zip(base, lost, strict=True)]
    axes.axvline(100 * (1 - PUBLISHED), color="k", lw=0.8, ls=":")
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="x-small")
    axes.set_xlabel("lost at M=8, % of allocated chip-time")
    axes.legend(fontsize="x-small")
