"""Which trials make the proof: stages of sizes, budgets and cases, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.store import Store
from atoll_bench.parity.trials import Method, Trial

SEEDS = (0, 1, 2)
TUNING_SEED = 100
"""Not one of those that count."""
LEARNERS = (2, 4, 8)
MOST = LEARNERS[-1]
"""Learners of the cases (c) to (f)."""
SWEPT = 2
"""The budget of the sweep: the second one, for in the first momentum has no time to pay."""

OUTER = ((1.0, 0.0), (0.7, 0.3), (0.5, 0.5), (0.7, 0.5), (1.0, 0.5), (0.4, 0.7), (0.4, 0.9), (0.7, 0.9))
"""η and μ of the sweep. DiLoCo and its successors have 0.7 and 0.9, for runs of many thousand steps."""

Rate = Callable[[str, Method, int], float]
"""Of a size, method and number of learners."""


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
"""What CI runs (`make learning`): 219 core seconds, under two minutes on two quiet cores (2026-11-21)."""
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
DEVICE = (
    Stage("35m", (1000, 2000), "ab", learners=(2, 8)),
    Stage("125m", (1000,), "ab", learners=(8,)),
)
"""What an accelerator does, some ten minutes a trial."""
NAMED = (Stage("1m", (800, 1600), "ab"),)
"""Run where `--size` names it, and not else."""
NAMED_DEVICE = (
    Stage("350m", (1000,), "ab", learners=(8,)),
    Stage("1b", (1000,), "ab", learners=(2,)),
    Stage("moe-125m", (1000,), "d", learners=(8,)),
)
"""So on an accelerator; two learners of 1b, for one process holds the moments of all."""


def stages(size: str | None, reduced: bool = False, device: bool = False) -> tuple[Stage, ...]:
    """Those of a size, or all that are run where none is named."""
    if size is not None:
        return tuple(stage for stage in _every(reduced, device) if stage.size == size)
    return REDUCED if reduced else DEVICE if device else WHOLE


def sizes(reduced: bool = False, device: bool = False) -> list[str]:
    """All that may be named."""
    return list(dict.fromkeys(stage.size for stage in _every(reduced, device)))


def _every(reduced: bool, device: bool) -> tuple[Stage, ...]:
    return REDUCED if reduced else DEVICE + NAMED_DEVICE if device else WHOLE + NAMED


def tuning(plan: Sequence[Stage]) -> list[Trial]:
    """Every learning rate of every method that the stages need, at the smallest budget of its size."""
    found: dict[Trial, None] = {}
    for stage in plan:
        steps = min(other.steps[0] for other in plan if other.size == stage.size)
        for method, learners in _methods(stage):
            for rate in SIZES[stage.size].rates:
                found[_trial("tune", stage.size, method, learners, TUNING_SEED, steps, rate)] = None
    return list(found)


def trials(plan: Sequence[Stage], cases: str, rate: Rate) -> list[Trial]:
    """All trials of these letters."""
    found: dict[Trial, None] = {}
    for stage in plan:
        for steps in stage.steps:
            for letter in stage.cases:
                if letter in cases:
                    found |= dict.fromkeys(_case(letter, stage, steps, rate))
    return list(found)


def best_rate(store: Store) -> Rate:
    """The learning rate of least loss among a method's tuning trials; the middle one where there is none. The outer
    constants are the contract's defaults and are not tuned (`sweep` tries them)."""

    def rate(size: str, method: Method, learners: int) -> float:
        tried = [
            (row["loss"], row["rate"])
            for row in store.rows
            if (row["case"], row["size"], row["method"], row["learners"]) == ("tune", size, method, learners)
            and row["loss"] is not None
        ]
        rates = SIZES[size].rates
        return float(min(tried)[1]) if tried else rates[len(rates) // 2]

    return rate


def swept(plan: Sequence[Stage], rate: Rate) -> list[Trial]:
    """The sweep of each size."""
    budgets: dict[str, set[int]] = {}
    for stage in plan:
        budgets.setdefault(stage.size, set()).update(stage.steps)
    second = {size: sorted(each)[:SWEPT][-1] for size, each in budgets.items()}
    return [trial for size, steps in second.items() for trial in sweep(size, steps, rate)]


def sweep(size: str, steps: int, rate: Rate) -> list[Trial]:
    """The outer step's knobs, each from the defaults, for the most learners; η and μ also for the fewest."""
    base = _trial("sweep", size, "decoupled", MOST, SEEDS[0], steps, rate(size, "decoupled", MOST))
    moved: list[Trial] = [base]
    moved += [replace(base, eta=eta, mu=mu) for eta, mu in OUTER]
    moved += [replace(base, interval=interval) for interval in (6, 12, 48)]
    moved += [replace(base, merge="Mean"), replace(base, merge="Mean", eta=1.0, mu=0.0)]
    moved += [replace(base, warmup=100), replace(base, overlap=1), replace(base, forget=True)]
    storm = replace(base, failures=True, policy="K=1+grace")
    moved += [storm, replace(storm, moments=False)]
    few = replace(base, learners=LEARNERS[0], rate=rate(size, "decoupled", LEARNERS[0]))
    moved += [few, *(replace(few, eta=eta, mu=mu) for eta, mu in OUTER)]
    return list(dict.fromkeys(moved))


def _case(letter: str, stage: Stage, steps: int, rate: Rate) -> Iterator[Trial]:
    """A letter's trials, seed by seed."""
    most = rate(stage.size, "decoupled", MOST)
    for seed in stage.seeds:
        many = _trial(letter, stage.size, "decoupled", MOST, seed, steps, most)
        if letter in "abd":
            for method, learners in _methods(stage):
                if letter == "d" or (letter == "a") == (method == "data-parallel"):
                    fit = rate(stage.size, method, learners)
                    yield _trial(letter, stage.size, method, learners, seed, steps, fit)
        elif letter == "c":
            yield replace(many, codec="int4")
        elif letter == "e":
            for policy in ("K=M", "K=1", "K=1+grace"):
                yield replace(many, speeds="mixed", policy=policy)
        elif letter == "f":
            yield replace(many, failures=True, policy="K=1+grace")


def _methods(stage: Stage) -> list[tuple[Method, int]]:
    """What the stage compares."""
    found: list[tuple[Method, int]] = []
    if set(stage.cases) & set("ad"):
        found.append(("data-parallel", 1))
    if set(stage.cases) & set("bd"):
        found += [("decoupled", learners) for learners in stage.learners]
    elif set(stage.cases) & set("cef"):
        found.append(("decoupled", MOST))
    return found


def _trial(case: str, size: str, method: Method, learners: int, seed: int, steps: int, rate: float) -> Trial:
    plain = method == "data-parallel"
    return Trial(case, size, method, learners, "none" if plain else "bf16", seed, steps, rate)
