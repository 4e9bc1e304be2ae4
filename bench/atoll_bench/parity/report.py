"""The proof's table: mean and spread over seeds, and the gap to data-parallel training at equal tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.store import TUNING, Row
from atoll_bench.parity.trials import Trial

DATA_PARALLEL = "data-parallel"
OUTER = ("eta", "mu")
KNOBS = {"eta": "η", "mu": "μ", "interval": "H", "overlap": "τ", "warmup": "steps of outer warm-up"}
"""Numbers of a trial, and what the table calls them; η and μ are told together."""


@dataclass(frozen=True)
class Group:
    """Equal trials but for their seeds."""

    case: str
    size: str
    parameters: int
    label: str
    learners: int
    budget: int
    """Steps of data-parallel training."""
    tokens: float
    losses: tuple[float, ...]
    gap: float | None
    """Mean over seeds of loss / loss of data-parallel training with that seed, less 1; None without one."""
    gap_spread: float | None
    """Standard deviation of it over seeds."""
    merged: float | None
    """Share of the trained tokens that were merged."""
    goodput: float | None
    """Share of the learners' time in which they trained."""

    @property
    def loss(self) -> float:
        return fmean(self.losses)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return stdev(self.losses) if len(self.losses) > 1 else None


def groups(rows: Sequence[Row]) -> list[Group]:
    """In the order of case, size, budget; without tuning and sweeps, and what diverged."""
    counted = [row for row in rows if row["case"] not in TUNING and row["loss"] is not None]
    baseline = {
        (row["size"], row["steps"], row["seed"]): row["loss"]
        for row in counted
        if row["method"] == DATA_PARALLEL
    }
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in counted:
        key = (row["case"], row["size"], row["steps"], row["learners"], label(row))
        found.setdefault(key, []).append(row)
    return sorted((_group(each, baseline) for each in found.values()), key=_order)


def label(row: Row) -> str:
    """What a trial is, in words."""
    if row["method"] == DATA_PARALLEL:
        return DATA_PARALLEL
    words = [f"M={row['learners']}", row["codec"], row["policy"]]
    words += ["mixed speeds"] if row["speeds"] == "mixed" else []
    words += ["failures"] if row["failures"] else []
    return " ".join(words)


def name(trial: Trial) -> str:
    """Tells it from the others, in words."""
    rate = f" rate {trial.rate:g}" if trial.case == "tune" else ""
    return f"{label(trial.identity())} {trial.size} {trial.steps} steps seed {trial.seed}{rate}"


def markdown(rows: Sequence[Row], command: str) -> str:
    """The whole table, and the tuning that led to it."""
    lines = [
        "# Parity",
        "",
        f"`{command}` writes this page, [parity.json](parity.json), [the plot](parity.png), and the trials that chose",
        "learning rates and defaults to [parity-tuning.json](parity-tuning.json).",
        "Loss is that of the global model on held-out text, nats per byte; ± is the standard deviation over seeds.",
        "A gap is to data-parallel training of the same size, budget, data order and seed.",
        "Goodput is the share of the learners' time in which they train, merged that of their tokens which is merged.",
        "",
        "| case | size | parameters | tokens | method | loss | gap | goodput | merged | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group in groups(rows):
        cells = (
            group.case,
            group.size,
            f"{group.parameters:,}",
            f"{group.tokens / 1e6:.2f} M",
            group.label,
            f"{group.loss:.4f}" + _around(group.spread, "{:.4f}"),
            "" if group.gap is None else f"{group.gap:+.2%}" + _around(group.gap_spread, "{:.2%}"),
            "" if group.goodput is None else f"{group.goodput:.0%}",
            "" if group.merged is None else f"{group.merged:.1%}",
            str(len(group.losses)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *_swept(rows), *_tuning(rows)]) + "\n"


def _swept(rows: Sequence[Row]) -> list[str]:
    """The trials of `--sweep`, each by what it changes."""
    tried: dict[tuple[str, int, int, str], list[float]] = {}
    for row in rows:
        if row["case"] == "sweep" and row["loss"] is not None:
            key = row["size"], row["steps"], row["learners"], changed(row)
            tried.setdefault(key, []).append(row["loss"])
    if not tried:
        return []
    defaults = _defaults(rows)
    lines = [
        "",
        "## What closes the gap",
        "",
        "Each knob from the defaults, with the size's tuned learning rate and the first seed.",
        "",
        "| size | tokens | learners | changed | loss | to the defaults |",
        "|---|---|---|---|---|---|",
    ]
    for (size, steps, learners, what), losses in sorted(
        tried.items(), key=lambda each: (each[0][:3], each[1])
    ):
        base = defaults.get((size, steps, learners))
        there = "" if base is None or not what else f"{fmean(losses) / base - 1:+.2%}"
        tokens = f"{steps * SIZES[size].tokens / 1e6:.2f} M"
        lines.append(
            f"| {size} | {tokens} | {learners} | {what or 'nothing'} | {fmean(losses):.4f} | {there} |"
        )
    return lines


def _defaults(rows: Sequence[Row]) -> dict[tuple[str, int, int], float]:
    """Losses with all knobs at their defaults and the first seed, by size, budget and learners; of the sweep, or else
    of the cases, where the same trial has another letter."""
    found: dict[tuple[str, int, int], float] = {}
    for row in sorted(rows, key=lambda row: row["case"] == "sweep"):
        alike = row["case"] in ("b", "d", "sweep") and row["seed"] == 0 and row["method"] != DATA_PARALLEL
        if alike and not changed(row) and row["loss"] is not None:
            found[row["size"], row["steps"], row["learners"]] = row["loss"]
    return found


def changed(row: Row) -> str:
    """What a trial of the sweep has otherwise than the defaults, in words."""
    words = [
        f"{name} {row[field]:g}"
        for field, name in KNOBS.items()
        if row[field] != getattr(Trial, field) or (field in OUTER and _outer(row) != _outer(vars(Trial)))
    ]
    words += ["mean in the place of RDA"] if row["merge"] == "Mean" else []
    words += ["moments forgotten on receipt"] if row["forget"] else []
    words += ["failures"] if row["failures"] else []
    words += ["moments lost with the learner"] if not row["moments"] else []
    return ", ".join(words)


def _outer(values: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(values[field] for field in OUTER)


def _tuning(rows: Sequence[Row]) -> list[str]:
    tried = [row for row in rows if row["case"] == "tune"]
    if not tried:
        return []
    rates = sorted({row["rate"] for row in tried})
    lines = [
        "",
        "## Tuning",
        "",
        "The same budget for every method: the inner learning rates of its size, one seed that does not count.",
        "",
        "| size | method | steps | " + " | ".join(f"{rate:g}" for rate in rates) + " |",
        "|---|---|---|" + "---|" * len(rates),
    ]
    found: dict[tuple[str, str, int], dict[float, float]] = {}
    for row in tried:
        found.setdefault((row["size"], label(row), row["steps"]), {})[row["rate"]] = (
            math.inf if row["loss"] is None else row["loss"]
        )
    for (size, name, steps), losses in found.items():
        best = min(losses.values())
        cells = [
            ""
            if rate not in losses
            else f"**{losses[rate]:.4f}**"
            if losses[rate] == best
            else f"{losses[rate]:.4f}"
            for rate in rates
        ]
        lines.append(f"| {size} | {name} | {steps} | " + " | ".join(cells) + " |")
    return lines


def _group(rows: list[Row], baseline: dict[tuple[str, int, int], float]) -> Group:
    first = rows[0]
    plain = first["method"] == DATA_PARALLEL
    gaps = [
        row["loss"] / baseline[row["size"], row["steps"], row["seed"]] - 1
        for row in rows
        if not plain and (row["size"], row["steps"], row["seed"]) in baseline
    ]
    return Group(
        case=first["case"],
        size=first["size"],
        parameters=first["parameters"],
        label=label(first),
        learners=first["learners"],
        budget=first["steps"],
        tokens=fmean(row["tokens"] for row in rows),
        losses=tuple(row["loss"] for row in rows),
        gap=fmean(gaps) if gaps else None,
        gap_spread=stdev(gaps) if len(gaps) > 1 else None,
        merged=None
        if plain
        else sum(row["merged_tokens"] for row in rows) / sum(row["tokens"] for row in rows),
        goodput=None
        if plain
        else sum(row["tokens"] for row in rows) / sum(row["seconds"] * Trial.of(row).speed for row in rows),
    )


def _order(group: Group) -> tuple[object, ...]:
    return (
        group.case,
        group.parameters,
        group.budget,
        group.label != DATA_PARALLEL,
        group.learners,
        group.label,
    )


def _around(spread: float | None, form: str) -> str:
    return "" if spread is None else " ± " + form.format(spread)
