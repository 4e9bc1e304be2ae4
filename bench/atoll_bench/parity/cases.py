"""The trials of the proof: stages of sizes, budgets and cases, in the order in which they run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.store import Store
from atoll_bench.parity.trials import Trial

SEEDS = (0, 1, 2)
TUNING_SEED = 100
"""The seed of the tuning, which is not one of `SEEDS`."""
LEARNERS = (2, 4, 8)
MOST = LEARNERS[-1]
"""Learners of the cases (c) to (f)."""

CHANGES: dict[str, tuple[Mapping[str, Any], ...]] = {
    "c": ({"codec": "int4"},),
    "e": tuple({"speeds": "mixed", "policy": policy} for policy in ("K=M", "K=1", "K=1+grace")),
    "f": ({"failures": True, "policy": "K=1+grace"},),
}
"""The trials of cases with `MOST` learners, as differences from the trial of (b)."""
Rate = Callable[[str, int], float]
"""Returns the inner learning rate for a size and number of learners."""


@dataclass(frozen=True)
class Stage:
    """Cases of one size."""

    size: str
    steps: tuple[int, ...]
    """Budgets, each twice the one before. The first is also the budget of the tuning."""
    cases: str
    """Letters. For a mixture of experts, (d) contains the trials of (a) and (b)."""
    learners: tuple[int, ...] = LEARNERS


REDUCED = (Stage("30k", (100,), "abcef", learners=(2, 8)),)
"""What `make test-all` runs: 219 core seconds, under two minutes on two quiet cores (2026-11-21)."""
WHOLE = (
    Stage("30k", (400, 800), "ab"),
    Stage("30k", (800,), "cef"),
    Stage("90k", (400, 800), "ab"),
    Stage("moe-120k", (400,), "d"),
    Stage("30k", (1600,), "ab"),
    Stage("90k", (800,), "cef"),
    Stage("moe-120k", (800,), "d"),
    Stage("90k", (1600,), "ab"),
    Stage("250k", (400, 800), "ab"),
    Stage("moe-120k", (1600,), "d"),
    Stage("250k", (1600,), "ab"),
    Stage("90k", (3200,), "ab"),
    Stage("moe-50k", (400, 800), "d"),
)
"""What two cores do within six hours. Stages that show most for their time come first, as the run may stop anywhere."""
DEVICE = (Stage("35m", (1000, 2000), "ab", learners=(2, 8)), Stage("125m", (1000,), "ab", learners=(8,)))
"""What an accelerator does, in about ten minutes a trial."""
NAMED = (
    Stage("1m", (800, 1600), "ab"),
    Stage("350m", (1000,), "ab", learners=(8,)),
    Stage("1b", (1000,), "ab", learners=(2,)),
    Stage("moe-125m", (1000,), "d", learners=(8,)),
)
"""Run only if `--size` names them, all but 1m on an accelerator. 1b has only two learners, because one process holds
the moments of all learners."""


def stages(size: str | None = None, *, reduced: bool = False, device: bool = False) -> tuple[Stage, ...]:
    """The stages of a plan, or only those of one size. Empty if the reduced plan does not have the size."""
    every = WHOLE + DEVICE + NAMED
    plan = REDUCED if reduced else every if size is not None else DEVICE if device else WHOLE
    return tuple(stage for stage in plan if size in (None, stage.size))


def tuning(stage: Stage, plan: Sequence[Stage]) -> list[Trial]:
    """Trials of every learning rate for every method in the stage, at the size's smallest budget in `plan`."""
    steps = min(other.steps[0] for other in plan if other.size == stage.size)
    methods = dict.fromkeys(learners for letter in stage.cases for learners in _compared(letter, stage))
    return [
        _trial("tune", stage.size, learners, TUNING_SEED, steps, rate)
        for learners in methods
        for rate in SIZES[stage.size].rates
    ]


def trials(stage: Stage, cases: str, rate: Rate) -> list[Trial]:
    """All trials of those of these cases that the stage has, seed by seed."""
    chosen = [letter for letter in stage.cases if letter in cases]
    return [
        replace(_trial(letter, stage.size, learners, seed, steps, rate(stage.size, learners)), **changes)
        for steps, letter, seed in itertools.product(stage.steps, chosen, SEEDS)
        for learners in _compared(letter, stage)
        for changes in CHANGES.get(letter, ({},))
    ]


def best_rate(store: Store) -> Rate:
    """Returns the learning rate with the least loss in a method's tuning trials, or the middle one if there are none.
    The outer constants are the contract's defaults and are not tuned."""

    def rate(size: str, learners: int) -> float:
        tried = [
            (row["loss"], row["rate"])
            for row in store.rows
            if (row["case"], row["size"], row["learners"]) == ("tune", size, learners)
            if row["loss"] is not None
        ]
        rates = SIZES[size].rates
        return float(min(tried)[1]) if tried else rates[len(rates) // 2]

    return rate


def _compared(letter: str, stage: Stage) -> tuple[int, ...]:
    """The numbers of learners that a case compares; 1 is data-parallel training."""
    plain, decoupled = (1,) if letter in "ad" else (), stage.learners if letter in "bd" else ()
    return plain + decoupled or (MOST,)


def _trial(case: str, size: str, learners: int, seed: int, steps: int, rate: float) -> Trial:
    if learners == 1:
        return Trial(case, size, "data-parallel", 1, "none", seed, steps, rate)
    return Trial(case, size, "decoupled", learners, "bf16", seed, steps, rate)
