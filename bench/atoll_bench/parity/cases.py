"""Which trials make the proof: stages of sizes, budgets and cases, in the order in which they are run."""

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
"""Not one of those that count."""
LEARNERS = (2, 4, 8)
MOST = LEARNERS[-1]
"""Learners of the cases (c) to (f)."""

Changes = Mapping[str, Any]
"""Fields of a trial that differ from the defaults."""
CHANGES: dict[str, tuple[Changes, ...]] = {
    "c": ({"codec": "int4"},),
    "e": tuple({"speeds": "mixed", "policy": policy} for policy in ("K=M", "K=1", "K=1+grace")),
    "f": ({"failures": True, "policy": "K=1+grace"},),
}
"""The trials of the cases with the most learners: each is another than that of (b)."""
Rate = Callable[[str, int], float]
"""Inner learning rate of a size and number of learners."""


@dataclass(frozen=True)
class Stage:
    """Cases of one size."""

    size: str
    steps: tuple[int, ...]
    """Budgets, each twice the one before; the first is that of the tuning."""
    cases: str
    """Letters; for a mixture of experts (a) and (b) stand under (d)."""
    seeds: tuple[int, ...] = SEEDS
    learners: tuple[int, ...] = LEARNERS


REDUCED = (Stage("30k", (100,), "abcef", seeds=(0, 1, 2), learners=(2, 8)),)
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
"""What two cores do within six hours. What says most for its time comes first: the table may stop anywhere."""
DEVICE = (Stage("35m", (1000, 2000), "ab", learners=(2, 8)), Stage("125m", (1000,), "ab", learners=(8,)))
"""What an accelerator does, some ten minutes a trial."""
NAMED = (Stage("1m", (800, 1600), "ab"),)
"""Run where `--size` names it, and not else."""
NAMED_DEVICE = (
    Stage("350m", (1000,), "ab", learners=(8,)),
    Stage("1b", (1000,), "ab", learners=(2,)),
    Stage("moe-125m", (1000,), "d", learners=(8,)),
)
"""So on an accelerator; two learners of 1b, for one process holds the moments of all."""


EVERY = (*WHOLE, *NAMED, *DEVICE, *NAMED_DEVICE)


def stages(size: str | None = None, *, reduced: bool = False, device: bool = False) -> tuple[Stage, ...]:
    """The stages of a plan, or those of one size: empty where the reduced plan has not the size."""
    plan = REDUCED if reduced else EVERY if size is not None else DEVICE if device else WHOLE
    return tuple(stage for stage in plan if size in (None, stage.size))


def tuning(stages: Sequence[Stage], plan: Sequence[Stage]) -> list[Trial]:
    """Every learning rate of every method that the stages need, at their size's smallest budget in `plan`."""
    found: dict[Trial, None] = {}
    for stage in stages:
        steps = min(other.steps[0] for other in plan if other.size == stage.size)
        for learners in dict.fromkeys(each for letter in stage.cases for each in _compared(letter, stage)):
            for rate in SIZES[stage.size].rates:
                found[_trial("tune", stage.size, learners, TUNING_SEED, steps, rate)] = None
    return list(found)


def trials(stages: Sequence[Stage], cases: str, rate: Rate) -> list[Trial]:
    """All trials of these letters, seed by seed."""
    found: dict[Trial, None] = {}
    for stage in stages:
        chosen = [letter for letter in stage.cases if letter in cases]
        for steps, letter, seed in itertools.product(stage.steps, chosen, stage.seeds):
            for learners in _compared(letter, stage):
                one = _trial(letter, stage.size, learners, seed, steps, rate(stage.size, learners))
                found |= dict.fromkeys(replace(one, **changes) for changes in CHANGES.get(letter, ({},)))
    return list(found)


def best_rate(store: Store) -> Rate:
    """The learning rate of least loss among a method's tuning trials; the middle one where there is none. The outer
    constants are the contract's defaults and are not tuned."""

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
    """Numbers of learners of a case; 1 is data-parallel training."""
    plain, decoupled = (1,) if letter in "ad" else (), stage.learners if letter in "bd" else ()
    return plain + decoupled or (MOST,)


def _trial(case: str, size: str, learners: int, seed: int, steps: int, rate: float) -> Trial:
    if learners == 1:
        return Trial(case, size, "data-parallel", 1, "none", seed, steps, rate)
    return Trial(case, size, "decoupled", learners, "bf16", seed, steps, rate)
