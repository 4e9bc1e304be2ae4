"""Formats figures and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll_cli.views import HeldOutView, RunView, Sample, UnitView

HEAL_STAGES = {
    "schedule": "schedule",
    "pull": "pull",
    "start": "start",
    "restore": "restore",
    "compile": "compile",
    "catchUp": "catch up",
}
"""In printing order, with their labels."""


def seconds(value: float | None) -> str:
    """`7.3 s`, `42 s`, `3 min 05 s`; `-` for nothing."""
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


def camel(name: str) -> str:
    """A Python name as a key of JSON: `held_out` becomes `heldOut`."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


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


def top_table(sample: Sample) -> str:
    """A line for each unit, the fastest first."""
    head = ("UNIT", "TOKENS/S", "STEP", "SHARE", "STALENESS", "LOSS", "PHASE")
    rows = [
        (
            unit.name,
            amount(unit.tokens_per_second),
            str(unit.step),
            f"{unit.share_percent:.1f} %",
            str(unit.staleness),
            loss(unit.loss),
            unit.phase,
        )
        for unit in sorted(sample.units.values(), key=lambda unit: (-unit.tokens_per_second, unit.name))
    ]
    return table(head, rows)


def codec(unit: UnitView) -> str:
    """Of its fragments, and of how many rounds it takes part in one: `bf16`, `int4 1/2.5`; `-` before the first."""
    period = unit.link.get("period", 0)
    return (unit.link.get("codec") or "-") + (f" 1/{period:.3g}" if period > 1 else "")


def link(unit: UnitView) -> tuple[str, str, str, str]:
    """Rates up and down, round trip, busy share, failures; `-` where it is not known."""
    if not (known := unit.link):
        return ("-",) * 4
    return (
        f"{known['upGbps']:.3g}/{known['downGbps']:.3g}",
        f"{1000 * known['rttSeconds']:.3g} ms",
        f"{known['busyShare']:.0%}",
        str(known["failures"]),
    )


def unit_table(sample: Sample, wide: bool = False) -> str:
    """A line for each unit."""
    head = ["UNIT", "PHASE", "INCARNATION", "STEP", "LOSS", "TOKENS/S", "RESTARTS", "LAST HEAL", "CODEC"]
    head += ["POOL", "SEEDED FROM", "LINK UP/DOWN GBIT/S", "ROUND TRIP", "BUSY", "BROKEN"] if wide else []
    rows = [
        (
            unit.name,
            unit.phase,
            str(unit.incarnation),
            str(unit.step),
            loss(unit.loss),
            amount(unit.tokens_per_second),
            str(unit.restarts),
            seconds(unit.heal_seconds),
            codec(unit),
            *((unit.pool, "-" if unit.seeded_step is None else str(unit.seeded_step)) if wide else ()),
            *(link(unit) if wide else ()),
        )
        for unit in sorted(sample.units.values(), key=lambda unit: unit.name)
    ]
    return table(head, rows)


def run_table(runs: Mapping[tuple[str, str], RunView], wide: bool = False) -> str:
    """A line for each run, by namespace and name."""
    head = ["NAMESPACE", "RUN", "PHASE", "UNITS", "STEP", "TOKENS/S", "LOSS"]
    head += ["QUORUM", "CHECKPOINT", "MESSAGE"] if wide else []
    rows = [
        (
            namespace,
            name,
            run.phase,
            run.units or "-",
            progress(run),
            amount(run.tokens_per_second),
            loss(run.loss),
            *(
                (
                    run.quorum or "-",
                    "-" if run.checkpoint_step is None else str(run.checkpoint_step),
                    run.message,
                )
                if wide
                else ()
            ),
        )
        for (namespace, name), run in runs.items()
    ]
    return table(head, rows)
