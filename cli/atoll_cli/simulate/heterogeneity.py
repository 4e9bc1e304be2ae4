"""`atoll simulate heterogeneity`: goodput, and what becomes of the tokens, when learners are not equally fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll_cli import values
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.simulate.output import Column, Report
from atoll_cli.simulate.question import Option, Values, choice, count, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll_runtime.simulate.fleet.scenario import Scenario

SPEEDS = "1,1,1,1,1.18,1.18,1.18,1.18"
"""The published mix: two TPU generations, the slower one by 18 % (arXiv 2604.21428, §4.4)."""
JITTER = 0.1
"""The variance that was injected there."""
MOST_LEARNERS = 128
MOST_APART = 20.0
"""The slowest against the fastest. The paper's envelope is 1.18."""
STEPS = 1000
"""Global steps: 40 intervals, enough for shares to a point, ten seconds of computing a row."""


@dataclass(frozen=True)
class Row:
    """What is asked for; the first part of an answer's row."""

    quorum: int
    grace: str
    wait: str
    published_goodput: float | None = None


PUBLISHED_ROWS = (Row(8, "auto", "published", 0.84), Row(1, "0", "never", 1.0), Row(1, "auto", "never", 1.0))
"""arXiv 2604.21428, §4.4; "published" waiting is that of a synchronous control."""


def _speeds(option: str, text: str) -> tuple[float, ...]:
    speeds = tuple(values.numbers(option, text, least=0.01, most=100))
    if len(speeds) > MOST_LEARNERS:
        raise UsageError(f"{option}: {len(speeds)} learners; at most {MOST_LEARNERS} are taken")
    if (apart := max(speeds) / min(speeds)) > MOST_APART:
        raise UsageError(
            f"{option} {text!r}: the slowest takes {apart:g} times the fastest's time; at most {MOST_APART:g} is wanted"
        )
    return speeds


OPTIONS = (
    Option("--speeds", "LIST", _speeds, f"relative step times (default {SPEEDS})"),
    Option("--jitter", "SHARE", number(0, 0.5), f"spread of each one's pace (default {JITTER})"),
    Option("--quorum", "K", count(), "learners that a merge needs (default 1)"),
    Option("--grace", "0|auto", choice("0", "auto"), "wait for more than K (default auto)"),
    Option("--wait", "published|never", choice("published", "never"),
           "learners wait for merges; default: published where K = M"),
    Option("--fragments", "P", count(), "fragments", default="24"),
    Option("--interval", "H", count(1, 10_000), "steps between two merges of a fragment", default="24"),
    Option("--overlap", "T", count(), "rounds in flight", default="2"),
    Option("--steps", "N", count(1, 1_000_000), "global steps", default=str(STEPS)),
    Option("--drift-steps", "N", count(1, 1_000_000), "inner steps that a learner keeps a drawn pace", default="24"),
    Option("--seed", "N", count(0), "of the random numbers", default="0"),
)  # fmt: skip
OWN = ("drift_steps", "fragments", "interval", "overlap", "steps", "seed")
"""Options that stand in each row."""
KEYS = (
    "quorum", "grace", "wait", "goodput", "published_goodput", "merged_share", "discarded", "in_flight", "merges",
    "mean_members", "learners", "real_interval", "staleness", "steps_per_second", "speeds", "jitter", *OWN,
)  # fmt: skip
"""Of a row."""


def answer(found: Values) -> Report:
    """A row for what was asked for, or the published rows.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the clock stands still.
    """
    from atoll_runtime.simulate.fleet.rounds import outcomes
    from atoll_runtime.simulate.shard import Stalled

    for name, least, most in (
        ("fragments", 1, found["interval"]),
        ("overlap", 1, found["interval"]),
        ("steps", 2 * found["interval"], 1_000_000),
    ):
        values.count(f"--{name}", str(found[name]), least, most)
    own = any(found[name] is not None for name in ("speeds", "jitter", "quorum", "grace", "wait"))
    found["jitter"] = JITTER if found["jitter"] is None else found["jitter"]
    found["speeds"] = found["speeds"] or _speeds("--speeds", SPEEDS)
    asked = [_row(found)] if own else list(PUBLISHED_ROWS)
    ours = [replace(row, wait="never") for row in asked if row.wait == "published"]
    try:
        results = outcomes([_scenario(found, row) for row in asked + ours], found["seed"])
    except Stalled as error:
        raise CommandError(f"simulate heterogeneity: {error}") from error
    every = {
        **{name: found[name] for name in ("speeds", "jitter", *OWN)},
        "learners": len(found["speeds"]),
    }
    rows = []
    for row, result in zip(asked + ours, results, strict=True):
        known = {**asdict(row), **asdict(result), **every}
        known["steps_per_second"] = found["steps"] / result.seconds
        rows.append({key: known[key] for key in KEYS})
    slowest = max(found["speeds"]) / min(found["speeds"]) - 1
    title = f"{len(found['speeds'])} learners, the slowest {slowest:.0%} behind, spread {found['jitter']:.0%}"
    shown, unasked = tuple(rows[: len(asked)]), rows[len(asked) :]
    return Report(title, COLUMNS, shown, _notes(unasked, found), lambda figure: _draw(figure, shown))


def _row(found: Values) -> Row:
    quorum, learners = found["quorum"] or 1, len(found["speeds"])
    if quorum > learners:
        raise UsageError(f"--quorum '{quorum}': at most the {learners} learners of --speeds")
    wait = found["wait"] or ("published" if quorum == learners else "never")
    return Row(quorum, found["grace"] or "auto", wait)


def _scenario(found: Values, row: Row) -> Scenario:
    from atoll_runtime.contract import GraceSpec
    from atoll_runtime.simulate.fleet.scenario import Scenario, Unit, simulated_rules

    rules = simulated_rules(
        fragments=found["fragments"],
        interval=found["interval"],
        overlap=found["overlap"],
        quorum=row.quorum,
        grace=GraceSpec() if row.grace == "auto" else GraceSpec(fraction=0.0),
        steps=found["steps"],
    )
    fastest = min(found["speeds"])
    units = tuple(Unit(f"unit-{i:03}", speed / fastest) for i, speed in enumerate(found["speeds"]))
    return Scenario(rules, units, found["jitter"], found["drift_steps"], row.wait == "published")


def _notes(ours: Sequence[dict[str, Any]], found: Values) -> tuple[str, ...]:
    """What the table does not say; `ours`: what this runtime does where a published control waits."""
    notes = [
        "goodput: share of the learners' time in inner steps. merged: share of trained tokens that a merge took.",
        f"A learner keeps a drawn pace for {found['drift_steps']} steps; a second is a step of the fastest.",
    ]
    for row in ours:
        notes += [
            f"K={row['quorum']}, wait published: a control in which a learner makes no step more than "
            f"{row['overlap']} rounds ahead of the newest merge it has.",
            f"Learners of this runtime never wait: with K={row['quorum']} goodput is {row['goodput']:.0%}, "
            f"{row['merged_share']:.1%} of tokens are merged and the clock makes "
            f"{row['steps_per_second']:.2f} steps a second (with K=1 too: it keeps the pace of the slowest); "
            "a learner that hangs stops the merges until it has been silent for 30 s.",
        ]
    return tuple(notes)


def _discarded(shares: dict[str, float]) -> str:
    return ", ".join(f"{reason} {share:.1%}" for reason, share in shares.items()) or "-"


COLUMNS = (
    Column("quorum", "K"),
    Column("grace", "grace"),
    Column("wait", "wait"),
    Column("goodput", "goodput", "{:.1%}".format),
    Column("published_goodput", "published", "{:.0%}".format),
    Column("merged_share", "merged", "{:.1%}".format),
    Column("discarded", "discarded", _discarded),
    Column("in_flight", "in flight", "{:.1%}".format),
    Column("mean_members", "members", "{:.2f}".format),
    Column("real_interval", "real H", "{:.1f}".format),
    Column("staleness", "staleness", "{:.1f}".format),
    Column("steps_per_second", "steps/s", "{:.2f}".format),
)


def _draw(figure: Figure, rows: Sequence[dict[str, Any]]) -> None:
    """Goodput and merged share of each row, and the published goodput as a line on its bar."""
    axes = figure.subplots()
    for shift, key, label in ((-0.2, "goodput", "goodput"), (0.2, "merged_share", "tokens merged")):
        axes.bar([i + shift for i in range(len(rows))], [100 * row[key] for row in rows], 0.36, label=label)
    published = [(i, row["published_goodput"]) for i, row in enumerate(rows) if row["published_goodput"]]
    for n, (i, value) in enumerate(published):
        label = "goodput, published" if n == 0 else "_again"
        axes.hlines(100 * value, i - 0.38, i - 0.02, colors="black", linewidth=2, label=label)
    for i, row in enumerate(rows):
        members = f"{row['mean_members']:.1f} members"
        axes.annotate(members, (i + 0.2, 2), ha="center", color="white", fontsize=8)
    axes.set_xticks(
        range(len(rows)), [f"K={row['quorum']}, grace {row['grace']}\nwait {row['wait']}" for row in rows]
    )
    axes.set(ylabel="per cent", ylim=(0, 115), title="Learners of unequal speed")
    axes.legend(loc="upper center", ncols=3)
