"""`atoll simulate heterogeneity`: goodput, and what becomes of the tokens, if learners are not equally fast."""

from __future__ import annotations

from dataclasses import asdict

from atoll_cli.arguments import Option, Values, choice, count, number, several
from atoll_cli.errors import UsageError
from atoll_cli.simulate.links import affordable
from atoll_cli.simulate.output import Report, percent

SPEEDS = "1,1,1,1,1.18,1.18,1.18,1.18"
"""The published mix: two TPU generations, the slower one by 18 % (arXiv 2604.21428, §4.4)."""
JITTER = 0.1
"""The variance that the paper injected in that experiment."""
PUBLISHED = {(8, "auto"): 0.84, (1, "0"): 1.0, (1, "auto"): 1.0}
"""Goodput by quorum and grace, from the same section."""
MOST_LEARNERS = 128
MOST_APART = 20.0
"""Largest ratio of the slowest learner's step time to the fastest's. The paper's is 1.18."""


def _speeds(option: str, text: str) -> tuple[float, ...]:
    speeds = tuple(several(number(0.01, 100))(option, text))
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
    Option("--steps", "N", count(48, 1_000_000), "global steps", default="1000"),
    Option("--seed", "N", count(0), "of the random numbers", default="0"),
)  # fmt: skip


def answer(found: Values) -> Report:
    """Return a row for the options that were given, or the published rows. Raises `UsageError`, and `Stalled` if the
    simulated clock stands still."""
    from atoll_runtime.contract import GraceSpec, OuterSpec, QuorumSpec
    from atoll_runtime.simulate.fleet.rounds import outcome
    from atoll_runtime.simulate.fleet.scenario import Scenario, Unit, waiting_goodput

    own = any(found[name] is not None for name in ("speeds", "jitter", "quorum", "grace"))
    speeds = found["speeds"] or _speeds("--speeds", SPEEDS)
    jitter = JITTER if found["jitter"] is None else found["jitter"]
    asked = [(found["quorum"] or 1, found["grace"] or "auto")] if own else list(PUBLISHED)
    if asked[0][0] > len(speeds):
        raise UsageError(f"--quorum '{asked[0][0]}': at most the {len(speeds)} learners of --speeds")
    affordable(found["steps"], len(asked) * found["steps"] * sum(max(speeds) / each for each in speeds))
    units = tuple(Unit(each / min(speeds)) for each in speeds)
    outer = OuterSpec()
    rows = []
    for quorum, grace in asked:
        waited = GraceSpec() if grace == "auto" else GraceSpec(fraction=0.0)
        scenario = Scenario(outer, QuorumSpec(min=quorum, grace=waited), found["steps"], units, jitter)
        waits = quorum == len(speeds) > 1
        row = {"quorum": quorum, "grace": grace, "waits": waits, **asdict(outcome(scenario, found["seed"]))}
        if waits:
            row["goodput"] = waiting_goodput(scenario, found["seed"])
        row["published_goodput"] = None if own else PUBLISHED[quorum, grace]
        row["steps_per_second"] = found["steps"] / row.pop("seconds")
        row |= {"learners": len(speeds), "speeds": speeds, "jitter": jitter}
        row |= {name: getattr(outer, name) for name in ("fragments", "interval", "overlap")}
        rows.append({**row, "steps": found["steps"], "seed": found["seed"]})
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
