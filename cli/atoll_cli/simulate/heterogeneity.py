"""`atoll simulate heterogeneity`: goodput, and what becomes of the tokens, when learners are not equally fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.simulate.output import Column, Report, add_output_options, deliver
from atoll_cli.values import choice, count, number, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEEDS = "1,1,1,1,1.18,1.18,1.18,1.18"
"""The published mix: two TPU generations, the slower one by 18 % (arXiv 2604.21428, §4.4)."""
JITTER = "0.1"
"""The variance that was injected there."""
MOST_LEARNERS = 128
MOST_APART = 20.0
"""The slowest against the fastest. The paper's envelope is 1.18."""
STEPS = 1000
"""Global steps: 40 intervals, enough for shares to a point, a second of computing a row."""
NO_CUTS = 10**9
"""Global steps between two checkpoints, which stop nobody."""


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


def add_options(question: argparse.ArgumentParser) -> None:
    """Adds what only this question takes."""
    question.add_argument("--speeds", metavar="LIST", help=f"relative step times (default {SPEEDS})")
    question.add_argument("--jitter", metavar="SHARE", help=f"spread of each one's pace (default {JITTER})")
    question.add_argument("--quorum", metavar="K", help="learners that a merge needs (default 1)")
    question.add_argument("--grace", metavar="0|auto", help="wait for more than K (default auto)")
    question.add_argument(
        "--wait", metavar="published|never", help="learners wait for merges; default: published where K = M"
    )
    for name, letter, default, what in (
        ("--fragments", "P", 24, "fragments"),
        ("--interval", "H", 24, "steps between two merges of a fragment"),
        ("--overlap", "T", 2, "rounds in flight"),
        ("--steps", "N", STEPS, "global steps"),
        ("--drift-steps", "N", 24, "inner steps for which a learner keeps a drawn pace"),
        ("--seed", "S", 0, "of the paces that are drawn"),
    ):
        question.add_argument(
            name, metavar=letter, default=str(default), help=f"{what} (default %(default)s)"
        )
    add_output_options(question)


def run(options: argparse.Namespace) -> int:
    """Simulates the rows that were asked for.

    Raises:
        UsageError: an option's value cannot be used.
        CommandError: the clock stands still.
    """
    jitter = number("--jitter", JITTER if options.jitter is None else options.jitter, most=0.5)
    asked = (options.speeds, options.jitter, options.quorum, options.grace, options.wait)
    if any(value is not None for value in asked):
        settings: Sequence[Setting] = (_setting(options, jitter),)
    else:
        settings = [Setting(_speeds(SPEEDS), jitter, *row) for row in PUBLISHED_ROWS]
    simulate = _simulator(options)
    rows = tuple(simulate(setting) for setting in settings)
    notes = _notes(settings, options.drift_steps, simulate) if not options.json else ()
    deliver(Report(_title(settings[0]), COLUMNS, rows, notes, lambda figure: _draw(figure, rows)), options)
    return 0


def _speeds(text: str) -> tuple[float, ...]:
    speeds = tuple(numbers("--speeds", text, least=0.01, most=100))
    if len(speeds) > MOST_LEARNERS:
        raise UsageError(f"--speeds: {len(speeds)} learners; at most {MOST_LEARNERS} are taken")
    if (apart := max(speeds) / min(speeds)) > MOST_APART:
        raise UsageError(
            f"--speeds {text!r}: the slowest takes {apart:g} times the fastest's time; at most {MOST_APART:g} is wanted"
        )
    return speeds


def _setting(options: argparse.Namespace, jitter: float) -> Setting:
    speeds = _speeds(SPEEDS if options.speeds is None else options.speeds)
    quorum = count("--quorum", "1" if options.quorum is None else options.quorum)
    if quorum > len(speeds):
        raise UsageError(f"--quorum {options.quorum!r}: at most the {len(speeds)} learners of --speeds")
    grace = choice("--grace", "auto" if options.grace is None else options.grace, ("0", "auto")) == "auto"
    default = "published" if quorum == len(speeds) else "never"
    waits = (
        choice("--wait", default if options.wait is None else options.wait, ("published", "never"))
        == "published"
    )
    return Setting(speeds, jitter, quorum, grace, waits)


def _simulator(options: argparse.Namespace) -> Callable[[Setting], dict[str, Any]]:
    """What all rows have in common is read once."""
    from numpy.random import default_rng

    from atoll_runtime.contract import GraceSpec
    from atoll_runtime.simulate.fleet.rounds import Stalled, outcome
    from atoll_runtime.simulate.fleet.scenario import Life, Scenario
    from atoll_runtime.sync.rules import Rules

    interval = count("--interval", options.interval, most=10_000)
    fragments = count("--fragments", options.fragments, most=interval)
    overlap = count("--overlap", options.overlap, most=interval)
    steps = count("--steps", options.steps, least=2 * interval, most=1_000_000)
    drift = count("--drift-steps", options.drift_steps, most=1_000_000)
    seed = count("--seed", options.seed, least=0)
    spec = GraceSpec()

    def simulate(setting: Setting) -> dict[str, Any]:
        rules = Rules(
            fragments=fragments,
            interval=interval,
            overlap=overlap,
            quorum=setting.quorum,
            grace_fraction=spec.fraction if setting.grace else 0.0,
            grace_steps=spec.max_steps,
            target_steps=steps,
            target_tokens=None,
            cut_interval=NO_CUTS,
        )
        fastest = min(setting.speeds)
        lives = tuple(Life(f"unit-{i:03}", speed / fastest) for i, speed in enumerate(setting.speeds))
        scenario = Scenario(rules, lives, setting.jitter, drift, setting.waits)
        try:
            found = outcome(scenario, default_rng(seed))
        except Stalled as error:
            raise CommandError(f"simulate heterogeneity: {error}") from error
        return {
            "quorum": setting.quorum,
            "grace": "auto" if setting.grace else "0",
            "wait": "published" if setting.waits else "never",
            "goodput": found.goodput,
            "published_goodput": setting.published,
            "merged_share": found.merged_share,
            "discarded": found.discarded,
            "in_flight": found.in_flight,
            "merges": found.merges,
            "mean_members": found.mean_members,
            "learners": len(setting.speeds),
            "real_interval": found.real_interval,
            "staleness": found.staleness,
            "steps_per_second": steps / found.seconds,
            "speeds": list(setting.speeds),
            "jitter": setting.jitter,
            "drift_steps": drift,
            "fragments": fragments,
            "interval": interval,
            "overlap": overlap,
            "steps": steps,
            "seed": seed,
        }

    return simulate


def _title(setting: Setting) -> str:
    slowest = max(setting.speeds) / min(setting.speeds) - 1
    return f"{len(setting.speeds)} learners, the slowest {slowest:.0%} behind, spread {setting.jitter:.0%}"


def _notes(
    settings: Sequence[Setting], drift: str, simulate: Callable[[Setting], dict[str, Any]]
) -> tuple[str, ...]:
    """What the table does not say; with what this runtime does where the published control waits."""
    notes = [
        "goodput: share of the learners' time in inner steps. merged: share of trained tokens that a merge took.",
        f"A learner keeps a drawn pace for {drift} steps; a second is a step of the fastest.",
    ]
    for setting in settings:
        if not setting.waits:
            continue
        ours = simulate(Setting(setting.speeds, setting.jitter, setting.quorum, setting.grace, waits=False))
        notes += [
            f"K={setting.quorum}, wait published: a control in which a learner makes no step more than "
            f"{ours['overlap']} rounds ahead of the newest merge it has.",
            f"Learners of this runtime never wait: with K={setting.quorum} goodput is {ours['goodput']:.0%}, "
            f"{ours['merged_share']:.1%} of tokens are merged and the clock makes "
            f"{ours['steps_per_second']:.2f} steps a second (with K=1 too: it keeps the pace of the slowest); "
            "a learner that hangs stops the merges until it has been silent for 30 s.",
        ]
    return tuple(notes)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _discarded(shares: dict[str, float]) -> str:
    return ", ".join(f"{reason} {share:.1%}" for reason, share in shares.items()) or "-"


COLUMNS = (
    Column("quorum", "K"),
    Column("grace", "grace"),
    Column("wait", "wait"),
    Column("goodput", "goodput", _share),
    Column("published_goodput", "published", lambda value: f"{value:.0%}"),
    Column("merged_share", "merged", _share),
    Column("discarded", "discarded", _discarded),
    Column("in_flight", "in flight", _share),
    Column("mean_members", "members", lambda value: f"{value:.2f}"),
    Column("real_interval", "real H", lambda value: f"{value:.1f}"),
    Column("staleness", "staleness", lambda value: f"{value:.1f}"),
    Column("steps_per_second", "steps/s", lambda value: f"{value:.2f}"),
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
