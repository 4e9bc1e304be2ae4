"""Plain data-parallel training: one model, every learner's share of the data in each step."""

from __future__ import annotations

import math

from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.simulate.training.batches import Share
from atoll_runtime.simulate.training.programs import Programs
from atoll_runtime.simulate.training.result import Result
from atoll_runtime.simulate.training.setting import Setting


def data_parallel(setting: Setting, seed: int) -> Result:
    """Trains for the setting's steps with its inner optimiser.

    Raises:
        ArithmeticError: the loss is not finite.
    """
    run = setting.run(seed)
    programs = Programs(run, setting.sequences)
    inner, batches = programs.inner, Share(programs.train, seed, 0, 1, setting.sequences)
    loss = math.nan
    for step in range(setting.steps):
        rate = learning_rate(run.inner, setting.steps, step, step, healed=False)
        loss = float(inner.step(batches.take().tokens, rate))
    if not math.isfinite(loss):
        raise ArithmeticError(f"the loss is {loss} after {setting.steps} steps")
    return Result(
        loss=programs.loss(inner.theta),
        tokens=setting.steps * inner.tokens,
        merged_tokens=setting.steps * inner.tokens,
        parameters=programs.parameters,
        steps=setting.steps,
    )
