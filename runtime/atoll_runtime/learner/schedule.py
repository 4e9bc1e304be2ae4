"""The inner learning rate: by the *global* step, so that a healed unit goes on where the others are."""

from __future__ import annotations

import math

from atoll_runtime.contract import InnerSpec

REWARM = 20
"""Steps of a second, short warm-up after a heal without moments: AdamW's start at zero then, and its first steps
are as long as the learning rate allows in every coordinate."""


def learning_rate(inner: InnerSpec, target: int | None, step: float, since_seed: int, healed: bool) -> float:
    """Learning rate of one inner step.

    Args:
        target: global steps of the run; `None` (a target in tokens alone) means constant after the warm-up.
        step: the global step as far as this unit knows it.
        since_seed: inner steps of this incarnation.
        healed: whether this incarnation began after step 0 with moments of zero.
    """
    rate = inner.learning_rate
    if step < inner.warmup_steps:
        rate *= (step + 1) / inner.warmup_steps
    elif inner.schedule == "Cosine" and target is not None and target > inner.warmup_steps:
        progress = min(1.0, (step - inner.warmup_steps) / (target - inner.warmup_steps))
        floor = inner.final_fraction
        rate *= floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
    if healed:
        rate *= min(1.0, (since_seed + 1) / REWARM)
    return rate
