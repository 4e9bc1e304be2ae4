"""`atoll simulate heterogeneity`: goodput, and what becomes of the tokens, when learners are not equally fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll_cli import values
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.simulate.output import Column, Report
from atoll_cli.simulate.question import Option, Values, choice, count, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEEDS = "1,1,1,1,1.18,1.18,1.18,1.18"
"""The published mix: two TPU generations, the slower one by 18 % (arXiv 2604.21428, §4.4)."""
JITTER = 0.1
"""The variance that was injected there."""
MOST_LEARNERS = 128
MOST_APART = 20.0
"""The slowest against the fastest. The paper's envelope is 1.18."""
STEPS = 1000
"""Global steps: 40 intervals, enough for shares to a point, a second of computing a row."""


@dataclass(frozen=True)
class Setting:
    """One row's question."""

    speeds: tuple[float, ...]
    """Relative step times."""
    jitter: float
    quorum: int
    grace: bool
    waits: bool
    published: float | None = None
    """Goodput."""


PUBLISHED_ROWS = ((8, True, True, 0.84), (1, False, False, 1.0), (1, True, False, 1.0))
"""K, adaptive grace, a synchronous control, goodput (arXiv 2604.21428, §4.4)."""


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


def answer(found: Values) -> Report:
    """A row for what was asked for, or the published rows.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the clock stands still.
    """
    for name, least, most in (
        ("fragments", 1, found["interval"]),
        ("overlap", 1, found["interval"]),
        ("steps", 2 * found["interval"], 1_000_000),
    ):
        values.count(f"--{name}", str(found[name]), least, most)
    jitter = JITTER if found["jitter"] is None else found["jitter"]
    speeds = found["speeds"] or _speeds("--speeds", SPEEDS)
    if any(found[name] is not None for name in ("speeds", "jitter", "quorum", "grace", "wait")):
        settings = [_setting(found, speeds, jitter)]
    else:
        settings = [Setting(speeds, jitter, *row) for row in PUBLISHED_ROWS]
    rows = tuple(_simulate(found, setting) for setting in settings)
    return Report(
        _title(settings[0]), COLUMNS, rows, _notes(settings, found), lambda figure: _draw(figure, rows)
    )


def _setting(found: Values, speeds: tuple[float, ...], jitter: float) -> Setting:
    quorum = found["quorum"] or 1
    if quorum > len(speeds):
        raise UsageError(f"--quorum '{quorum}': at most the {len(speeds)} learners of --speeds")
    wait = found["wait"] or ("published" if quorum == len(speeds) else "never")
    return Setting(speeds, jitter, quorum, found["grace"] != "0", wait == "published")


def _simulate(found: Values, setting: Setting) -> dict[str, Any]:
    from numpy.random import default_rng

    from atoll_runtime.contract import GraceSpec
    from atoll_runtime.simulate.fleet.rounds import Stalled, outcome
    from atoll_runtime.simulate.fleet.scenario import Life, Scenario, simulated_rules

    rules = simulated_rules(
        fragments=found["fragments"],
        interval=found["interval"],
        overlap=found["overlap"],
        quorum=setting.quorum,
        grace=GraceSpec() if setting.grace else GraceSpec(fraction=0.0),
        steps=found["steps"],
    )
    fastest = min(setting.speeds)
    lives = tuple(Life(f"unit-{i:03}", speed / fastest) for i, speed in enumerate(setting.speeds))
    scenario = Scenario(rules, lives, setting.jitter, found["drift_steps"], setting.waits)
    try:
        result = outcome(scenario, default_rng(found["seed"]))
    except Stalled as error:
        raise CommandError(f"simulate heterogeneity: {error}") from error
    return {
        "quorum": setting.quorum,
        "grace": "auto" if setting.grace else "0",
        "wait": "published" if setting.waits else "never",
        "goodput": result.goodput,
        "published_goodput": setting.published,
        "merged_share": result.merged_share,
        "discarded": result.discarded,
        "in_flight": result.in_flight,
        "merges": result.merges,
        "mean_members": result.mean_members,
        "learners": len(setting.speeds),
        "real_interval": result.real_interval,
        "staleness": result.staleness,
        "steps_per_second": found["steps"] / result.seconds,
        "speeds": list(setting.speeds),
        "jitter": setting.jitter,
        **{
            name: found[name] for name in ("drift_steps", "fragments", "interval", "overlap", "steps", "seed")
        },
    }


def _title(setting: Setting) -> str:
    slowest = max(setting.speeds) / min(setting.speeds) - 1
    return f"{len(setting.speeds)} learners, the slowest {slowest:.0%} behind, spread {setting.jitter:.0%}"


def _notes(settings: Sequence[Setting], found: Values) -> tuple[str, ...]:
    """What the table does not say; with what this runtime does where the published control waits."""
    notes = [
        "goodput: share of the learners' time in inner steps. merged: share of trained tokens that a merge took.",
        f"A learner keeps a drawn pace for {found['drift_steps']} steps; a second is a step of the fastest.",
    ]
    for setting in settings:
        if not setting.waits:
            continue
        ours = _simulate(found, replace(setting, waits=False))
        notes += [
            f"K={setting.quorum}, wait published: a control in which a learner makes no step more than "
            f"{ours['overlap']} rounds ahead of the newest merge it has.",
            f"Learners of this runtime never wait: with K={setting.quorum} goodput is {ours['goodput']:.0%}, "
            f"{ours['merged_share']:.1%} of tokens are merged and the clock makes "
            f"{ours['steps_per_second']:.2f} steps a second (with K=1 too: it keeps the pace of the slowest); "
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
    axes.bar(
        [i - 0.2 for i in range(len(rows))], [100 * row["goodput"] for row in rows], 0.36, label="goodput"
    )
    axes.bar(
        [i + 0.2 for i in range(len(rows))],
        [100 * row["merged_share"] for row in rows],
        0.36,
        label="tokens merged",
    )
    published = [(i, row["published_goodput"]) for i, row in enumerate(rows) if row["published_goodput"]]
    for n, (i, value) in enumerate(published):
        label = "goodput, published" if n == 0 else "_again"
        axes.hlines(100 * value, i - 0.38, i - 0.02, colors="black", linewidth=2, label=label)
    for i, row in enumerate(rows):
        axes.annotate(
            f"{row['mean_members']:.1f} members", (i + 0.2, 2), ha="center", color="white", fontsize=8
        )
    axes.set_xticks(
        range(len(rows)), [f"K={row['quorum']}, grace {row['grace']}\nwait {row['wait']}" for row in rows]
    )
    axes.set_ylabel("per cent")
    axes.set_ylim(0, 115)
    axes.legend(loc="upper center", ncols=3)
    axes.set_title("Learners of unequal speed")
