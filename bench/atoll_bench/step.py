"""Compares the inner step with a plain loop of optax.

The plain loop is a jitted step for one device that does not wait between steps. Ours waits for each step's loss, as the
training loop does. Both have the same model, data and constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from atoll_bench.island import Plain
from atoll_bench.rates import Rates, in_turns, timed
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
class Setting:
    """What is trained, and for how long."""

    preset: str
    batch: int
    length: int
    """Tokens of a sequence."""
    pairs: int
    seconds: float
    """Approximate seconds of a phase."""
    peak_tflops: float | None = None
    """Of the device, in 10¹² floating-point operations a second."""


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


def measure(**options: Any) -> Iterator[StepFigure]:
    """`options` are the fields of a `Setting`."""
    setting = Setting(**options)
    ours, plain = _loops(setting)
    ours.advance(3)
    plain.advance(3)
    steps = max(2, round(3 * setting.seconds / timed(plain.advance, 3).seconds))
    found = in_turns(setting.pairs, steps, partial(timed, plain.advance), partial(timed, ours.advance))
    tokens, peak = setting.batch * setting.length * found.ours, setting.peak_tflops
    yield StepFigure(
        **vars(found),
        preset=setting.preset,
        parameters=ours.parameters,
        batch=setting.batch,
        length=setting.length,
        device=jax.devices()[0].device_kind,
        tokens_per_second=tokens,
        utilisation=None if peak is None else FLOPS * ours.parameters * tokens / (1e12 * peak),
    )


def _loops(setting: Setting) -> tuple[_Ours, Plain]:
    """Both loops, with the same batches."""
    model, batches = ModelSpec(preset=setting.preset), _batches(setting)
    plain = Plain(model, InnerSpec(), initial(model), lambda step: batches[step % BATCHES], lambda _: RATE)
    return _Ours(setting, batches), plain


class _Ours:
    """A unit's inner steps, as in its training loop."""

    def __init__(self, setting: Setting, batches: Sequence[np.ndarray]) -> None:
        model, mesh = ModelSpec(preset=setting.preset), span(jax.devices())
        theta = initial(model)
        self.parameters = sum(value.size for value in theta.values())
        self.inner = Inner(mesh, model, InnerSpec(), theta, setting.batch, setting.length)
        self._batches = batches

    def advance(self, steps: int) -> None:
        for step in range(steps):
            float(self.inner.step(self._batches[step % BATCHES], RATE))


def _batches(setting: Setting) -> list[np.ndarray]:
    shape = (BATCHES, setting.batch, setting.length + 1)
    return list(np.random.default_rng(0).integers(0, 256, shape, np.int32))
