"""`atoll simulate heterogeneity`: goodput, and what becomes of the tokens, if learners are not equally fast."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from atoll_cli import values
from atoll_cli.arguments import Option, Values, choice, count, number
from atoll_cli.errors import UsageError
from atoll_cli.simulate.output import Report, percent

if TYPE_CHECKING:
    from atoll_runtime.simulate.fleet.scenario import Scenario

SPEEDS = "1,1,1,1,1.18,1.18,1.18,1.18"
"""The published mix: two TPU generations, the slower one by 18 % (arXiv 2604.21428, §4.4)."""
JITTER = 0.1
"""The variance that the paper injected in that experiment."""
MOST_LEARNERS = 128
MOST_APART = 20.0
"""Largest ratio of the slowest learner's step time to the fastest's. The paper's is 1.18."""
PUBLISHED = {(8, "auto"): 0.84, (1, "0"): 1.0, (1, "auto"): 1.0}
"""Goodput by quorum and grace, from the same section."""


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
    Option("--fragments", "P", count(), "fragments", default="24"),
    Option("--interval", "H", count(1, 10_000), "steps between two merges of a fragment", default="24"),
    Option("--overlap", "T", count(), "rounds in flight", default="2"),
    Option("--steps", "N", count(1, 1_000_000), "global steps", default="1000"),
    Option("--seed", "N", count(0), "of the random numbers", default="0"),
)  # fmt: skip
OWN = ("fragments", "interval", "overlap", "steps", "seed")
"""Options that each row repeats."""


def answer(found: Values) -> Report:
    """Return a row for the options that were given, or the published rows.

    Raises:
        UsageError: an option's value cannot be used.
        Stalled: the simulated clock stands still.
    """
    from atoll_runtime.simulate.fleet.rounds import outcome

    for name, least, most in (
        ("fragments", 1, found["interval"]),
        ("overlap", 1, found["interval"]),
        ("steps", 2 * found["interval"], 1_000_000),
    ):
        values.count(f"--{name}", str(found[name]), least, most)
    own = any(found[name] is not None for name in ("speeds", "jitter", "quorum", "grace"))
    speeds = found["speeds"] or _speeds("--speeds", SPEEDS)
    jitter = JITTER if found["jitter"] is None else found["jitter"]
    asked = [(found["quorum"] or 1, found["grace"] or "auto")] if own else list(PUBLISHED)
    if asked[0][0] > len(speeds):
        raise UsageError(f"--quorum '{asked[0][0]}': at most the {len(speeds)} learners of --speeds")
    rows = []
    for quorum, grace in asked:
        scenario = _scenario(found, speeds, jitter, quorum, grace)
        result = outcome(scenario, found["seed"])
        waits = quorum == len(speeds) > 1
        row = {"quorum": quorum, "grace": grace, "waits": waits, **asdict(result)}
        row["goodput"] = _waiting(scenario, found["seed"]) if waits else result.goodput
        row["published_goodput"] = None if own else PUBLISHED[quorum, grace]
        row["steps_per_second"] = found["steps"] / row.pop("seconds")
        same = {"learners": len(speeds), "speeds": speeds, "jitter": jitter}
        rows.append({**row, **same, **{name: found[name] for name in OWN}})
    slowest = max(speeds) / min(speeds) - 1
    return Report(
        title=f"{len(speeds)} learners, the slowest {percent(slowest)} behind, spread {percent(jitter)}",
        columns=("quorum", "grace", "waits", "goodput", "published_goodput", "merged_share", "discarded", "in_flight",
                 "mean_members", "steps_per_second"),
        rows=tuple(rows),
        notes=(
            "goodput: share of the learners' time in inner steps. merged: share of trained tokens that a merge took.",
            "waits: with K of all learners the goodput is that of the published ones, which wait for merges. Learners "
            "of this runtime never wait, and the rest of the row is theirs.",
        ),
    )  # fmt: skip


def _scenario(found: Values, speeds: tuple[float, ...], jitter: float, quorum: int, grace: str) -> Scenario:
    from atoll_runtime.contract import GraceSpec
    from atoll_runtime.simulate.fleet.scenario import Scenario, Unit, simulated_rules

    rules = simulated_rules(
        fragments=found["fragments"],
        interval=found["interval"],
        overlap=found["overlap"],
        quorum=quorum,
        grace=GraceSpec() if grace == "auto" else GraceSpec(fraction=0.0),
        steps=found["steps"],
    )
    fastest = min(speeds)
    units = tuple(Unit(f"unit-{number:04}", each / fastest) for number, each in enumerate(speeds))
    return Scenario(rules, units, jitter)


def _waiting(scenario: Scenario, seed: int) -> float:
    """Return the goodput of learners that make no step more than τ rounds ahead of their newest merge."""
    from numpy.random import default_rng

    from atoll_runtime.simulate.fleet.scenario import DRIFT_STEPS, Drift, waiting_goodput

    rules, chances = scenario.rules, default_rng(seed).spawn(len(scenario.units))
    drifts = [
        Drift(unit.pace, scenario.jitter, DRIFT_STEPS, chance)
        for unit, chance in zip(scenario.units, chances, strict=True)
    ]
    ahead = rules.overlap * -(-rules.interval // rules.fragments)
    return waiting_goodput(drifts, rules.target_steps or 0, ahead)
