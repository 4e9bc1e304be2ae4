"""The proof's plot: gaps to data-parallel training over tokens, and the gaps of the cases side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from atoll_bench.parity.report import Group, groups, label
from atoll_bench.parity.store import Row

GAP = "held-out loss above data-parallel, %"
MARKERS = {2: "o", 4: "s", 8: "^"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes a PNG."""
    from matplotlib.figure import Figure

    found, figure = groups(rows), Figure(figsize=(13, 5), layout="tight")
    left, right = figure.subplots(1, 2)
    _gaps(left, [group for group in found if group.trial.case in "bd" and group.gaps])
    _cases(right, [group for group in found if group.trial.case in "cdef" and group.gaps])
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _gaps(axes: Any, found: Sequence[Group]) -> None:
    sizes = sorted({(group.parameters, group.trial.size) for group in found})
    for number, (_, size) in enumerate(sizes):
        for learners, marker in MARKERS.items():
            line = [group for group in found if (group.trial.size, group.trial.learners) == (size, learners)]
            if line:
                line.sort(key=lambda group: group.tokens)
                means, spreads = _percent(line)
                axes.errorbar(
                    [group.tokens / 1e6 for group in line],
                    means,
                    yerr=spreads,
                    color=f"C{number}",
                    marker=marker,
                    capsize=3,
                    label=f"{size}, M={learners}",
                )
    axes.set(xscale="log", xlabel="tokens, millions", ylabel=GAP, title="Gap at equal tokens")
    axes.axhline(0, color="black", linewidth=0.8)
    if found:
        budgets = sorted({round(group.tokens / 1e6, 1) for group in found})
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.minorticks_off()
        axes.legend(fontsize=8)


def _cases(axes: Any, found: Sequence[Group]) -> None:
    names = [f"({group.trial.case}) {group.trial.size} {label(group.trial)}" for group in found]
    means, spreads = _percent(found)
    axes.barh(names, means, xerr=spreads, capsize=3)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.set(xlabel=GAP, title="Codecs, experts, speeds, failures")


def _percent(found: Sequence[Group]) -> tuple[list[float], list[float]]:
    """Means and standard deviations of the gaps."""
    means = [100 * fmean(group.gaps) for group in found]
    return means, [100 * stdev(group.gaps) if len(group.gaps) > 1 else 0.0 for group in found]
