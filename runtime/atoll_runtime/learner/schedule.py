"""The inner learning rate. It follows the *global* step and the merged tokens, so that a heal does not set it back."""

from __future__ import annotations

import math

from atoll_runtime.contract import InnerSpec

REWARM = 20
"""Steps of a second, short warm-up after a heal without moments. AdamW's moments then start at zero, so its first steps
are as long as the learning rate allows in every coordinate."""


def learning_rate(
    inner: InnerSpec, target: int | None, step: float, since_seed: int, healed: bool, done: float = 0.0
) -> float:
    """Learning rate of one inner step.

    Args:
        target: global steps of the run; `None`: its target is only in tokens.
        step: the global step as far as this unit knows it.
        since_seed: inner steps of this incarnation.
        healed: whether this incarnation began after step 0 with moments of zero.
        done: the part of the target in tokens that is merged, 0 without such a target. The nearer target counts,
            because it ends the run.
    """
    rate = inner.learning_rate
    if step < inner.warmup_steps:
        rate *= (step + 1) / inner.warmup_steps
    elif inner.schedule == "Cosine":
        progress = done
        if target is not None and target > inner.warmup_steps:
            progress = max(progress, (step - inner.warmup_steps) / (target - inner.warmup_steps))
        floor = inner.final_fraction
        rate *= floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if healed:
        rate *= min(1.0, (since_seed + 1) / REWARM)
    return rate
