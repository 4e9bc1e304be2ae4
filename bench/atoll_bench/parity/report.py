"""The proof's table: mean and spread over seeds, and the gap to data-parallel training at equal tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from atoll_bench.parity.store import TUNING, Row
from atoll_bench.parity.trials import Trial

DATA_PARALLEL = "data-parallel"

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


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line below `HEAD` for each group of trials that differ only in seed and rate, in the order of case, size and
    budget. Leaves out tuning and trials that diverged."""
    counted = [(Trial.of(row), row) for row in rows if row["case"] != TUNING and row["loss"] is not None]
    baseline = {
        (trial.size, trial.steps, trial.seed): row["loss"]
        for trial, row in counted
        if trial.method == DATA_PARALLEL
    }
    groups = defaultdict[Trial, list[Row]](list)
    for trial, row in counted:
        groups[replace(trial, seed=0, rate=0.0)].append(row)

    def order(group: tuple[Trial, list[Row]]) -> tuple[object, ...]:
        trial, (row, *_) = group
        own = trial.method != DATA_PARALLEL, trial.learners, label(trial)
        return (trial.case, row["parameters"], trial.steps, *own)

    return [_line(trial, each, baseline) for trial, each in sorted(groups.items(), key=order)]


def _line(trial: Trial, rows: list[Row], baseline: dict[tuple[str, int, int], float]) -> tuple[str, ...]:
    tokens = sum(row["tokens"] for row in rows)
    gaps, shares = list[float](), ("", "", "")
    if trial.method != DATA_PARALLEL:
        plain = [(row["loss"], baseline.get((trial.size, trial.steps, row["seed"]))) for row in rows]
        gaps = [loss / base - 1 for loss, base in plain if base is not None]
        shares = (
            f"{tokens / sum(row['seconds'] * trial.speed for row in rows):.0%}",
            f"{sum(row['merged_tokens'] for row in rows) / tokens:.1%}",
            str(sum(row["refused"] for row in rows)),
        )
    return (
        trial.case,
        trial.size,
        f"{rows[0]['parameters']:,}",
        f"{tokens / len(rows) / 1e6:.2f} M",
        label(trial),
        mean([row["loss"] for row in rows], "{:.4f}"),
        mean(gaps, "{:+.2%}", "{:.2%}"),
        *shares,
        str(len(rows)),
    )


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
    head, *others = (f"| {' | '.join(cells)} |" for cells in (HEAD, *lines(rows)))
    return "\n".join([INTRODUCTION.format(command=command), "", head, "|" + "---|" * len(HEAD), *others, ""])


def mean(values: Sequence[float], form: str, spread: str = "") -> str:
    """Formats the mean, with the standard deviation if there are several values. Empty for no values."""
    if len(values) < 2:
        return form.format(values[0]) if values else ""
    return f"{form.format(fmean(values))} ± {(spread or form).format(stdev(values))}"
