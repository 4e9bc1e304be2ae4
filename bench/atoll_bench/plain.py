"""A plain training loop without Atoll: one jitted step on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.learner import optimiser
from atoll_runtime.model.objective import objective


class Plain:
    """Trains the model with the run's optimiser, which is optax's AdamW by default.

    It waits only for the last step of a call, so that the device is never idle.

    Args:
        theta: initial values by flat name.
        batch: returns the tokens [rows, length + 1] of a step.
        rate: returns the learning rate of a step.
    """

    def __init__(
        self,
        model: ModelSpec,
        spec: InnerSpec,
        theta: Mapping[str, np.ndarray],
        batch: Callable[[int], np.ndarray],
        rate: Callable[[int], float],
    ) -> None:
        self._batch, self._rate = batch, rate
        self._objective = objective(model, spec)
        self._optimiser = optimiser.build(spec, self._objective.matrices)
        self._theta = {name: jnp.array(value) for name, value in theta.items()}
        self._moments = self._optimiser.init(self._theta)
        self._step = jax.jit(self._advance, donate_argnums=(0, 1))
        self._steps = 0

    def advance(self, steps: int) -> None:
        for step in range(self._steps, self._steps + steps):
            self._theta, self._moments, _ = self._step(
                self._theta, self._moments, self._batch(step), np.float32(self._rate(step))
            )
        self._steps += steps
        jax.block_until_ready(self._theta)

    def _advance(
        self, theta: dict[str, Array], moments: optax.OptState, tokens: Array, rate: Array
    ) -> tuple[dict[str, Array], optax.OptState, Array]:
        batch = {"tokens": tokens, "weights": jnp.ones((tokens.shape[0], tokens.shape[1] - 1))}
        with self._objective.products():
            loss, gradient = jax.value_and_grad(self._objective.loss)(theta, batch, jax.random.key(0))
        update, moments = self._optimiser.update(gradient, moments, theta, rate=rate)
        return jax.tree.map(jnp.subtract, theta, update), moments, loss
