"""The proof's plot: gaps to data-parallel training over tokens, and losses of the cases side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll_bench.parity.report import Group, groups
from atoll_bench.parity.store import Row

MARKERS = {2: "o", 4: "s", 8: "^"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = groups(rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5))
    _gaps(left, [group for group in found if group.case in "bd" and group.gap is not None])
    _cases(right, [group for group in found if group.case in "cdef" and group.gap is not None])
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _gaps(axes: Any, found: Sequence[Group]) -> None:
    sizes = sorted({(group.parameters, group.size) for group in found})
    for number, (_, size) in enumerate(sizes):
        for learners, marker in MARKERS.items():
            line = sorted(
                (group for group in found if (group.size, group.learners) == (size, learners)),
                key=lambda group: group.tokens,
            )
            if line:
                axes.errorbar(
                    [group.tokens / 1e6 for group in line],
                    [100 * (group.gap or 0.0) for group in line],
                    yerr=[100 * (group.gap_spread or 0.0) for group in line],
                    color=f"C{number}",
                    marker=marker,
                    capsize=3,
                    label=f"{size}, M={learners}",
                )
    axes.set(
        xscale="log",
        xlabel="tokens, millions",
        ylabel="held-out loss above data-parallel, %",
        title="Gap at equal tokens",
    )
    axes.axhline(0, color="black", linewidth=0.8)
    if found:
        budgets = sorted({round(group.tokens / 1e6, 1) for group in found})
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.minorticks_off()
        axes.legend(fontsize=8)


def _cases(axes: Any, found: Sequence[Group]) -> None:
    names = [f"({group.case}) {group.size} {group.label}" for group in found]
    axes.barh(
        names,
        [100 * (group.gap or 0.0) for group in found],
        xerr=[100 * (group.gap_spread or 0.0) for group in found],
        capsize=3,
    )
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.set(xlabel="held-out loss above data-parallel, %", title="Codecs, experts, speeds, failures")
