"""The island's own training: parameters and AdamW moments on the mesh, one jitted step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.checkpoint.units import Moments
from atoll_runtime.contract import InnerSpec
from atoll_runtime.learner.mesh import local_range
from atoll_runtime.model import decoder, parameters
from atoll_runtime.model.axes import everywhere, over_devices, placement

REMAT_FROM = 100_000_000
"""Parameters from which a layer's activations are computed again instead of kept."""


class Inner:
    """θ by flat name, float32, and its moments. A step replaces both in place."""

    def __init__(
        self,
        mesh: Mesh,
        spec: InnerSpec,
        theta: Mapping[str, np.ndarray],
        batch: int,
        length: int,
        moments: Moments | None = None,
    ) -> None:
        """Puts `theta` and `moments` (zero where None) on the mesh; `batch` sequences of `length` tokens a step."""
        self.mesh = mesh
        self.batch = batch
        self.length = length
        self.theta: dict[str, Array] = {
            name: _put(value, placement(mesh, name, value.shape)) for name, value in theta.items()
        }
        self._optimiser = adamw(spec, self.theta)
        self._moments = jax.jit(self._optimiser.init, out_shardings=self._moment_shardings())(self.theta)
        self.updates = 0
        """Optax's count: updates that the moments have seen, those before a restart included."""
        if moments is not None:
            self._restore(moments)
        self._step = jax.jit(
            self._advance,
            donate_argnums=(0, 1),
            out_shardings=(self._shardings(), self._moment_shardings(), everywhere(mesh)),
        )
        devices = mesh.devices.size
        self._rows = -(-batch // devices)
        first, last = local_range(mesh)
        self.rows = (first * self._rows, last * self._rows)
        """This host's rows of the batch, filled up to a multiple of the devices."""
        self._weights = self._global((np.arange(*self.rows) < batch).astype(np.float32))

    @property
    def tokens(self) -> int:
        """Tokens that one step trains on, in the whole unit."""
        return self.batch * self.length

    @property
    def mu(self) -> dict[str, Array]:
        """First moments, placed as θ is."""
        found: dict[str, Array] = self._adam.mu
        return found

    @property
    def nu(self) -> dict[str, Array]:
        """Second moments, placed as θ is."""
        found: dict[str, Array] = self._adam.nu
        return found

    @property
    def _adam(self) -> Any:
        """Found by its type, for `optax.tree.get` takes a millisecond of each capture."""
        return next(state for state in self._moments if isinstance(state, optax.ScaleByAdamState))

    def step(self, tokens: np.ndarray, rate: float) -> Array:
        """One AdamW step on this host's rows int32 [rows, T+1]; returns the loss, not waited for.

        The loss is NaN when the gradient is not finite: θ is of no use then.
        """
        batch = {"tokens": self._global(tokens), "weights": self._weights}
        loss: Array
        self.theta, self._moments, loss = self._step(self.theta, self._moments, batch, np.float32(rate))
        self.updates += 1
        return loss

    def _advance(
        self, theta: dict[str, Array], moments: Any, batch: decoder.Batch, rate: Array
    ) -> tuple[dict[str, Array], Any, Array]:
        size = sum(value.size for value in theta.values())
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        sharding = over_devices(self.mesh)

        def loss(theta: dict[str, Array]) -> Array:
            return decoder.loss(
                parameters.tree(theta),
                batch,
                dtype=jnp.float32 if on_cpu else jnp.bfloat16,
                remat=size >= REMAT_FROM,
                place=lambda x: jax.lax.with_sharding_constraint(x, sharding),
            )

        value, gradient = jax.value_and_grad(loss)(theta)
        update, moments = self._optimiser.update(gradient, moments, theta)
        theta = jax.tree.map(lambda old, change: old - rate * change, theta, update)
        # A bad gradient spoils θ a step before the loss shows it.
        return theta, moments, jnp.where(jnp.isfinite(optax.tree.norm(gradient)), value, jnp.nan)

    def _restore(self, moments: Moments) -> None:
        """Goes on with moments that this unit or another one had."""
        self.updates = moments.count
        self._moments = optax.tree.set(
            self._moments,
            mu={name: _put(moments.mu[name], value.sharding) for name, value in self.mu.items()},
            nu={name: _put(moments.nu[name], value.sharding) for name, value in self.nu.items()},
            count=_put(np.array(moments.count, np.int32), everywhere(self.mesh)),
        )

    def _shardings(self) -> dict[str, Any]:
        return {name: value.sharding for name, value in self.theta.items()}

    def _moment_shardings(self) -> Any:
        shapes = jax.eval_shape(self._optimiser.init, self.theta)
        return optax.tree_map_params(
            self._optimiser,
            lambda _, sharding: sharding,
            shapes,
            self._shardings(),
            transform_non_params=lambda _: everywhere(self.mesh),
        )

    def _global(self, local: np.ndarray) -> Array:
        """One array over the mesh from each host's rows."""
        rows = self._rows * self.mesh.devices.size
        shape = (rows, *local.shape[1:])
        whole: Array = jax.make_array_from_process_local_data(over_devices(self.mesh), local, shape)
        return whole


def adamw(spec: InnerSpec, theta: Mapping[str, Any]) -> optax.GradientTransformation:
    """AdamW before its learning rate; the decay touches matrices alone."""
    return optax.chain(
        optax.clip_by_global_norm(spec.clip_norm),
        optax.scale_by_adam(b1=spec.beta1, b2=spec.beta2),
        optax.add_decayed_weights(
            spec.weight_decay, mask={name: not name.endswith("/norm") for name in theta}
        ),
    )


def _put(value: np.ndarray, sharding: jax.sharding.Sharding) -> Array:
    """A host array that every host holds whole, onto the mesh: each device takes its slice."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
