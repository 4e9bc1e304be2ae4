"""What the proof takes: each size's speed is measured, and multiplied by what is to be trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from atoll_bench.parity import cases
from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.trials import Trial

SECONDS = 5.0
"""Of measured steps, for each size and number of learners."""
START_SECONDS = 8.0
"""Of a core, before a trial's first step: imports, programs from the cache, the first merges."""
LEARNING_RATE = 1e-3
"""While it is measured; it changes nothing."""


@dataclass(frozen=True)
class Estimate:
    """Of one size."""

    size: str
    trials: int
    tokens: int
    """Of all trials together."""
    tokens_per_second: float
    """Of a core, measured with the batch of one learner of eight; the others' larger ones are quicker or alike."""
    core_seconds: float


def estimate(stages: Sequence[cases.Stage], letters: str) -> list[Estimate]:
    """Of each size in the stages, in their order."""
    every = [*cases.tuning(stages), *cases.trials(stages, letters, lambda *_: LEARNING_RATE)]
    found = []
    for size in dict.fromkeys(trial.size for trial in every):
        mine = [trial for trial in every if trial.size == size]
        tokens = sum(trial.tokens for trial in mine)
        speed = measure(size)
        found.append(Estimate(size, len(mine), tokens, speed, tokens / speed + START_SECONDS * len(mine)))
    return found


def measure(size: str) -> float:
    """Tokens a second of a core: inner steps of a learner of eight."""
    import jax
    import numpy as np

    from atoll_runtime.learner.inner import Inner
    from atoll_runtime.learner.mesh import span
    from atoll_runtime.model import initial

    found = SIZES[size]
    trial = Trial("tune", size, "decoupled", cases.MOST, "bf16", 0, 1, LEARNING_RATE)
    setting = trial.setting("file:///nowhere")
    batch = setting.batch
    inner = Inner(span(jax.devices()), found.model, setting.inner, initial(found.model), batch, found.length)
    tokens = np.random.default_rng(0).integers(0, 256, (batch, found.length + 1), np.int32)
    float(inner.step(tokens, LEARNING_RATE))
    began, used, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() - began < SECONDS:
        float(inner.step(tokens, LEARNING_RATE))
        steps += 1
    return steps * inner.tokens / (time.process_time() - used)


def markdown(estimates: Sequence[Estimate], cores: int) -> str:
    """A table, and the sum."""
    lines = [
        "| size | trials | tokens | tokens a second and core | core hours |",
        "|---|---|---|---|---|",
        *(
            f"| {each.size} | {each.trials} | {each.tokens / 1e6:.0f} M | {each.tokens_per_second:,.0f} "
            f"| {each.core_seconds / 3600:.2f} |"
            for each in estimates
        ),
    ]
    total = sum(each.core_seconds for each in estimates) / 3600
    return "\n".join([*lines, "", f"{total:.1f} core hours: {total / cores:.1f} hours on {cores} cores."])
