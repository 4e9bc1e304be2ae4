"""Compares the inner step with a plain loop of optax.

The plain loop is a jitted step for one device that does not wait between steps. Ours waits for each step's loss, as the
training loop does. Both have the same model, data and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from atoll_bench.figures import Rates, in_turns, timed
from atoll_bench.island import Plain, check_device
from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import initial

RATE = 1e-3
BATCHES = 8
"""Batches of random tokens, used in turn, so that reading is not measured."""
FLOPS = 6
"""Floating-point operations for each parameter and token, forward and backward, without attention (Kaplan et al.,
2020)."""


@dataclass(frozen=True)
class StepFigure(Rates):
    """One line of `atoll bench step --json`."""

    preset: str
    parameters: int
    batch: int
    length: int
    device: str
    tokens_per_second: float
    """Ours."""
    utilisation: float | None
    """Share of the device's peak, computed from FLOPS and parameters; None if no peak is given."""


def measure(
    preset: str, batch: int, length: int, pairs: int, seconds: float, peak_tflops: float | None
) -> Iterator[StepFigure]:
    """Measures `pairs` phases of each loop, of about `seconds` each. Raises `CommandError` if several devices are
    visible."""
    check_device()
    inner, ours, plain = loops(preset, batch, length)
    ours(3)
    plain.advance(3)
    parameters = sum(value.size for value in inner.theta.values())
    steps = max(2, round(3 * seconds / timed(plain.advance, 3).seconds))
    found = in_turns(pairs, steps, partial(timed, plain.advance), partial(timed, ours))
    tokens = batch * length * found.ours
    yield StepFigure(
        **vars(found),
        preset=preset,
        parameters=parameters,
        batch=batch,
        length=length,
        device=jax.devices()[0].device_kind,
        tokens_per_second=tokens,
        utilisation=None if peak_tflops is None else FLOPS * parameters * tokens / (1e12 * peak_tflops),
    )


def loops(preset: str, batch: int, length: int) -> tuple[Inner, Callable[[int], None], Plain]:
    """Our inner step, its loop as in the training of a unit, and the plain loop, with the same batches."""
    model = ModelSpec(preset=preset)
    theta = initial(model)
    batches = np.random.default_rng(0).integers(0, 256, (BATCHES, batch, length + 1), np.int32)
    plain = Plain(model, InnerSpec(), theta, lambda step: batches[step % BATCHES], lambda _: RATE)
    inner = Inner(span(jax.devices()), model, InnerSpec(), theta, batch, length)

    def ours(steps: int) -> None:
        for step in range(steps):
            float(inner.step(batches[step % BATCHES], RATE))

    return inner, ours, plain
