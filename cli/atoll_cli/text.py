"""Formats figures and tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_camel

from atoll_cli.views import HeldOutView, RunView, Sample, UnitView

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HEAL_STAGES = {
    "schedule": "schedule",
    "pull": "pull",
    "start": "start",
    "restore": "restore",
    "compile": "compile",
    "catchUp": "catch up",
}
"""Stages of a heal in printing order, with their labels."""


def seconds(value: float | None) -> str:
    """`7.3 s`, `42 s`, `3 min 05 s`; `-` for None."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def amount(value: float, unit: str = "") -> str:
    """Decimal prefixes: `950`, `12.3 k`, `4.5 MB`."""
    prefixes = ["", "k", "M", "G", "T"]
    while abs(value) >= 1000 and len(prefixes) > 1:
        value /= 1000
        del prefixes[0]
    figure = f"{value:.1f}" if prefixes[0] else f"{value:.0f}"
    return f"{figure} {prefixes[0]}{unit}".strip()


def counted(number: int, noun: str) -> str:
    """`1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def loss(value: float | None) -> str:
    """Nats per token; `-` before the first report."""
    return "-" if value is None else f"{value:.3f}"


def camel_keys(view: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass by their keys in JSON: `heldOut` for `held_out`."""
    return {to_camel(name): value for name, value in asdict(view).items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def progress(run: RunView) -> str:
    """Global steps, with the target if it is known."""
    return f"{run.step}/{run.target}" if run.target else str(run.step)


def headline(run: RunView) -> str:
    """The run in one line: phase, units, global step, tokens/s, loss, quorum, bytes."""
    parts = [
        run.phase,
        f"units {run.units or '-'}",
        f"step {progress(run)}",
        f"{amount(run.tokens_per_second)} tokens/s",
        f"loss {loss(run.loss)}",
        f"quorum {run.quorum or '-'}",
        f"in {amount(run.bytes_in, 'B')} out {amount(run.bytes_out, 'B')}",
    ]
    return " · ".join(parts)


def held_out(view: HeldOutView) -> str:
    """The newest evaluation in one line."""
    value = "not finite" if view.loss is None else f"{view.loss:.4f}"
    return f"held-out loss: {value} at global step {view.step}, over {view.tokens:,} tokens"


def heals(sample: Sample) -> list[str]:
    """A line for each unit that healed: where the time went."""
    return [
        f"{unit.name} healed in {seconds(unit.heal_seconds)}: "
        + ", ".join(
            f"{words} {seconds(unit.heal_stages[name])}"
            for name, words in HEAL_STAGES.items()
            if name in unit.heal_stages
        )
        for unit in sorted(sample.units.values(), key=lambda unit: unit.name)
        if unit.heal_stages
    ]


def losses(run: RunView) -> list[str]:
    """A line for each reason of failures with its cost, the most expensive first."""
    return [
        f"lost to {reason}: {counted(round(cost['failures']), 'failure')}, {seconds(cost['seconds'])}, "
        f"{cost['chipSeconds']:,.0f} chip-seconds, {counted(round(cost['steps']), 'step')}"
        for reason, cost in sorted(run.lost.items(), key=lambda item: (-item[1]["chipSeconds"], item[0]))
    ]


def codec(unit: UnitView) -> str:
    """The codec, and the share of rounds if the unit skips some: `bf16`, `int4 1/2.5`; `-` while it is not known."""
    period = unit.link.get("period", 0)
    return (unit.link.get("codec") or "-") + (f" 1/{period:.3g}" if period > 1 else "")


def of_link(cell: Callable[[Mapping[str, Any]], str]) -> Callable[[UnitView], str]:
    """Format a cell about a unit's link; `-` if the link is not known."""
    return lambda unit: cell(unit.link) if unit.link else "-"


Columns = dict[str, Callable[[Any], str]]
"""Functions that format a cell, by the heading of the column."""
TOP: Columns = {
    "UNIT": lambda unit: unit.name,
    "TOKENS/S": lambda unit: amount(unit.tokens_per_second),
    "STEP": lambda unit: str(unit.step),
    "SHARE": lambda unit: f"{unit.share_percent:.1f} %",
    "STALENESS": lambda unit: str(unit.staleness),
    "LOSS": lambda unit: loss(unit.loss),
    "PHASE": lambda unit: unit.phase,
}
UNITS: Columns = {
    "UNIT": lambda unit: unit.name,
    "PHASE": lambda unit: unit.phase,
    "INCARNATION": lambda unit: str(unit.incarnation),
    "STEP": lambda unit: str(unit.step),
    "LOSS": lambda unit: loss(unit.loss),
    "TOKENS/S": lambda unit: amount(unit.tokens_per_second),
    "RESTARTS": lambda unit: str(unit.restarts),
    "LAST HEAL": lambda unit: seconds(unit.heal_seconds),
    "CODEC": codec,
}
UNITS_WIDE: Columns = UNITS | {
    "POOL": lambda unit: unit.pool,
    "SEEDED FROM": lambda unit: "-" if unit.seeded_step is None else str(unit.seeded_step),
    "LINK UP/DOWN GBIT/S": of_link(lambda link: f"{link['upGbps']:.3g}/{link['downGbps']:.3g}"),
    "ROUND TRIP": of_link(lambda link: f"{1000 * link['rttSeconds']:.3g} ms"),
    "BUSY": of_link(lambda link: f"{link['busyShare']:.0%}"),
    "BROKEN": of_link(lambda link: str(link["failures"])),
}
RUNS: Columns = {
    "PHASE": lambda run: run.phase,
    "UNITS": lambda run: run.units or "-",
    "STEP": progress,
    "TOKENS/S": lambda run: amount(run.tokens_per_second),
    "LOSS": lambda run: loss(run.loss),
}
RUNS_WIDE: Columns = RUNS | {
    "QUORUM": lambda run: run.quorum or "-",
    "CHECKPOINT": lambda run: "-" if run.checkpoint_step is None else str(run.checkpoint_step),
    "MESSAGE": lambda run: run.message,
}


def top_table(sample: Sample) -> str:
    """A line for each unit, the fastest first."""
    units = sorted(sample.units.values(), key=lambda unit: (-unit.tokens_per_second, unit.name))
    return table(list(TOP), [[cell(unit) for cell in TOP.values()] for unit in units])


def unit_table(sample: Sample, wide: bool = False) -> str:
    """A line for each unit."""
    columns, units = UNITS_WIDE if wide else UNITS, sorted(sample.units.values(), key=lambda unit: unit.name)
    return table(list(columns), [[cell(unit) for cell in columns.values()] for unit in units])


def run_table(runs: Mapping[tuple[str, str], RunView], wide: bool = False) -> str:
    """A line for each run, by namespace and name."""
    columns = RUNS_WIDE if wide else RUNS
    rows = [(*name, *(cell(run) for cell in columns.values())) for name, run in runs.items()]
    return table(["NAMESPACE", "RUN", *columns], rows)
