"""The proof's table and plot: mean and spread over seeds, and the gap to data-parallel training at equal tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from atoll_bench.parity.store import TUNING, Row
from atoll_bench.parity.trials import Trial

DATA_PARALLEL = "data-parallel"
GAP = "held-out loss above data-parallel, %"
MARKERS = {2: "o", 4: "s", 8: "^"}

INTRODUCTION = """# Parity

`{command}` writes this page, [parity.json](parity.json), and the trials that chose learning rates to
[parity-tuning.json](parity-tuning.json). [A sweep](parity-sweep.md) chose the outer step's defaults.
Loss is that of the global model on held-out text, nats per byte; ± is the standard deviation over seeds.
A gap is to data-parallel training of the same size, budget, data order and seed.
Goodput is the share of the learners' time in which they train, merged that of their tokens which is merged,
refused how many of all seeds' contributions the guard refused."""
HEAD = (
    "case", "size", "parameters", "tokens", "method", "loss", "gap", "goodput", "merged", "refused", "seeds",
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Trials that differ only in their seeds and learning rates."""

    trial: Trial
    """With seed 0 and rate 0."""
    parameters: int
    tokens: float
    """Mean over seeds."""
    gaps: list[float]
    """For each seed: loss / loss of data-parallel training - 1. Empty if there is no such training."""
    cells: tuple[str, ...]
    """Its row, below `HEAD`."""


def groups(rows: Sequence[Row]) -> list[Group]:
    """Groups rows in the order of case, size and budget. Leaves out tuning and trials that diverged."""
    counted = [(Trial.of(row), row) for row in rows if row["case"] != TUNING and row["loss"] is not None]
    baseline = {
        (trial.size, trial.steps, trial.seed): row["loss"]
        for trial, row in counted
        if trial.method == DATA_PARALLEL
    }
    found = defaultdict[Trial, list[Row]](list)
    for trial, row in counted:
        found[replace(trial, seed=0, rate=0.0)].append(row)
    return sorted((_group(trial, each, baseline) for trial, each in found.items()), key=_order)


def _group(trial: Trial, rows: list[Row], baseline: dict[tuple[str, int, int], float]) -> Group:
    parameters, tokens = rows[0]["parameters"], sum(row["tokens"] for row in rows)
    gaps, shares = list[float](), ("", "", "")
    if trial.method != DATA_PARALLEL:
        plain = [(row["loss"], baseline.get((trial.size, trial.steps, row["seed"]))) for row in rows]
        gaps = [loss / base - 1 for loss, base in plain if base is not None]
        shares = (
            f"{tokens / sum(row['seconds'] * trial.speed for row in rows):.0%}",
            f"{sum(row['merged_tokens'] for row in rows) / tokens:.1%}",
            str(sum(row["refused"] for row in rows)),
        )
    cells = (
        trial.case,
        trial.size,
        f"{parameters:,}",
        f"{tokens / len(rows) / 1e6:.2f} M",
        label(trial),
        mean([row["loss"] for row in rows], "{:.4f}"),
        mean(gaps, "{:+.2%}", "{:.2%}"),
        *shares,
        str(len(rows)),
    )
    return Group(trial, parameters, tokens / len(rows), gaps, cells)


def _order(group: Group) -> tuple[object, ...]:
    trial = group.trial
    own = trial.method != DATA_PARALLEL, trial.learners, label(trial)
    return (trial.case, group.parameters, trial.steps, *own)


def label(trial: Trial) -> str:
    """Describes a trial's method in words."""
    if trial.method == DATA_PARALLEL:
        return DATA_PARALLEL
    words = [f"M={trial.learners}", trial.codec, trial.policy]
    words += ["mixed speeds"] if trial.speeds == "mixed" else []
    return " ".join([*words, *(["failures"] if trial.failures else [])])


def name(trial: Trial) -> str:
    """Describes a trial in words that distinguish it from all others."""
    rate = f" rate {trial.rate:g}" if trial.case == TUNING else ""
    return f"{label(trial)} {trial.size} {trial.steps} steps seed {trial.seed}{rate}"


def markdown(rows: Sequence[Row], command: str) -> str:
    """The whole page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (HEAD, *(group.cells for group in groups(rows)))]
    return "\n".join(
        [INTRODUCTION.format(command=command), "", lines[0], "|" + "---|" * len(HEAD), *lines[1:], ""]
    )


def mean(values: Sequence[float], form: str, spread: str = "") -> str:
    """Formats the mean, with the standard deviation if there are several values. Empty for no values."""
    if len(values) < 2:
        return form.format(values[0]) if values else ""
    return f"{form.format(fmean(values))} ± {(spread or form).format(stdev(values))}"


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
