"""The island's own training: parameters and the optimiser's state on the mesh, one jitted step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.checkpoint.units import Moments
from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.data.packing import counted, segments
from atoll_runtime.learner import optimiser
from atoll_runtime.learner.compilation import Wrap, uncached
from atoll_runtime.model.axes import everywhere, over_rows, placement
from atoll_runtime.model.decoder import Batch
from atoll_runtime.model.objective import Loss, Tensors, objective
from atoll_runtime.model.rules import ROWS

Gradient = Callable[[Tensors, dict[str, Array], Array], tuple[Array, Any]]


class Inner:
    """θ by flat name, float32, and the optimiser's state. A step replaces both in place."""

    def __init__(
        self,
        mesh: Mesh,
        model: ModelSpec,
        spec: InnerSpec,
        theta: Mapping[str, np.ndarray],
        batch: int,
        length: int,
        moments: Moments | None = None,
        stream: int = 0,
        separator: int | None = None,
        programs: Wrap = uncached,
    ) -> None:
        """Puts `theta` and `moments` (None: zero) on the mesh. A step trains on `batch` sequences of `length` tokens.

        Args:
            stream: of the unit's data; together with the model's seed it seeds a task's random numbers.
            separator: the token that ends a document; if given, each token sees only its own document.
            programs: wraps the functions to compile.

        Raises:
            ModelError, OptimiserError: see `objective` and `optimiser.build`.
        """
        self.mesh = mesh
        self.batch = batch
        self.length = length
        self._separator = separator
        self._objective = objective(model, spec, mesh)
        axes = self._objective.axes
        self.theta: dict[str, Array] = {
            name: _put(value, placement(mesh, axes[name], value.shape)) for name, value in theta.items()
        }
        self._optimiser = optimiser.build(spec, self._objective.matrices)
        shapes = jax.eval_shape(self._optimiser.init, self.theta)
        self._placed = optimiser.shardings(shapes, self.theta, everywhere(mesh))
        self._init = programs("init", jax.jit(self._optimiser.init, out_shardings=self._placed))
        self._state = self._init(self.theta)
        self.restorable = optimiser.slots(shapes, self.theta) is not None
        """Whether all of the optimiser's state can be saved; if not, a healed unit begins with a new one."""
        self.updates = 0
        """Updates that the optimiser's state has seen, including those before a restart."""
        if moments is not None:
            self._restore(moments)
        self._seed = np.array([model.seed, stream], np.uint32)
        step = jax.jit(
            self._advance,
            donate_argnums=(0, 1),
            out_shardings=(
                {name: value.sharding for name, value in self.theta.items()},
                self._placed,
                everywhere(mesh),
            ),
        )
        self._step = programs("step", step)
        shares = math.prod(mesh.shape[axis] for axis in ROWS)
        parts = min(spec.accumulation, -(-batch // shares))  # more would add only rows of weight 0
        self._gradient = accumulated(self._objective.loss, parts)
        self._rows = -(-batch // (shares * parts)) * shares * parts
        """Rows of the whole batch, filled up so that all its shares are equal."""
        mine = over_rows(mesh).addressable_devices_indices_map((self._rows,)).values()
        spans = [index[0].indices(self._rows) for index in mine if index is not None]
        self.rows = (min(start for start, _, _ in spans), max(stop for _, stop, _ in spans))
        """This host's rows of the filled batch."""
        weights = np.arange(*self.rows)[:, None] < batch
        self._weights = self._global(np.tile(weights.astype(np.float32), length))

    def twin(self, theta: Mapping[str, np.ndarray], moments: Moments | None = None, stream: int = 0) -> Inner:
        """Returns another unit's training: the same compiled programs with a state of its own."""
        other = copy.copy(self)
        other.theta = {name: _put(value, self.theta[name].sharding) for name, value in theta.items()}
        other._state = self._init(other.theta)
        other.updates = 0
        if moments is not None:
            other._restore(moments)
        other._seed = np.array([self._seed[0], stream], np.uint32)
        return other

    @property
    def tokens(self) -> int:
        """Tokens that one step trains on, in the whole unit."""
        return self.batch * self.length

    @property
    def moments(self) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """The optimiser's first and second tensor for each parameter (AdamW's moments), empty if it saves none."""
        found = [*(optimiser.slots(self._state, self.theta) or []), {}, {}]
        return found[0], found[1]

    def step(self, tokens: np.ndarray, rate: float) -> Array:
        """Starts one step on this host's rows int32 [rows, T+1]; returns the loss without waiting for it.

        The loss is NaN if the gradient is not finite, because θ is then unusable.
        """
        batch = {"tokens": self._global(tokens), "weights": self._weights}
        when = np.append(self._seed, np.uint32(self.updates))
        loss: Array
        self.theta, self._state, loss = self._step(self.theta, self._state, batch, np.float32(rate), when)
        self.updates += 1
        return loss

    def same_on_all_shares(self, examples: np.ndarray) -> Batch:
        """A batch that repeats these rows, int32 [n, T+1], for each share of the mesh."""
        shares = math.prod(self.mesh.shape[axis] for axis in ROWS)
        rows, where = np.tile(examples, (shares, 1)), over_rows(self.mesh)
        return {"tokens": _put(rows, where), "weights": _put(np.ones_like(rows[:, 1:], np.float32), where)}

    def evaluate(self, theta: Mapping[str, Array], batch: Batch) -> Array:
        """The loss of any parameters, placed on the mesh like `theta`. For use in a traced function."""
        placed = {
            name: jax.lax.with_sharding_constraint(value, self.theta[name].sharding)
            for name, value in theta.items()
        }
        return self._objective.evaluate(placed, self._documents(batch))

    def _documents(self, batch: Batch) -> Batch:
        """Adds each token's document to the batch, if tokens see only their own document."""
        if self._separator is None:
            return batch
        batch = batch | {"segments": segments(batch["tokens"], self._separator)}
        return batch | {"weights": counted(batch)}  # a task's own loss uses only these weights

    def _advance(
        self, theta: dict[str, Array], state: Any, batch: Batch, rate: Array, when: Array
    ) -> tuple[dict[str, Array], Any, Array]:
        batch = self._documents(batch)
        seed, *rest = when
        rng = jax.random.key(seed)
        for number in rest:
            rng = jax.random.fold_in(rng, number)
        with self._objective.products():
            value, gradient = self._gradient(theta, batch, rng)
        update, state = self._optimiser.update(gradient, state, theta, rate=rate)
        theta = jax.tree.map(jnp.subtract, theta, update)
        # A bad gradient spoils θ a step before the loss shows it.
        return theta, state, jnp.where(jnp.isfinite(optax.tree.norm(gradient)), value, jnp.nan)

    def _restore(self, moments: Moments) -> None:
        """Continues with moments of this unit or of another one, if the optimiser's state can be restored from them."""
        if not self.restorable:
            return
        self.updates = moments.count
        mu, nu = (
            {name: _put(value, self.theta[name].sharding) for name, value in each.items()}
            for each in (moments.mu, moments.nu)
        )
        self._state = optimiser.restored(self._state, self.theta, (mu, nu), self.updates)

    def _global(self, local: np.ndarray) -> Array:
        """One array over the mesh, of the rows of all hosts."""
        shape = (self._rows, *local.shape[1:])
        whole: Array = jax.make_array_from_process_local_data(over_rows(self.mesh), local, shape)
        return whole


def _put(value: np.ndarray, sharding: jax.sharding.Sharding) -> Array:
    """Puts an array that every host holds whole on the mesh: each device takes its slice."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def accumulated(loss: Loss, parts: int) -> Gradient:
    """Value and gradient of `loss`, a weighted mean over the batch, for batches that `parts` divides. They are computed
    for one part after the other, so that memory holds the activations of one part at a time.

    The losses of a mixture's routers are then means over a part, not over the batch.
    """
    plain = jax.value_and_grad(loss)
    if parts == 1:
        return plain

    def gradient(theta: Tensors, batch: dict[str, Array], rng: Array) -> tuple[Array, Any]:
        total = jnp.sum(counted(batch))

        def add(
            sums: tuple[Array, Any], part: tuple[dict[str, Array], Array]
        ) -> tuple[tuple[Array, Any], None]:
            mine, number = part
            share = jnp.sum(counted(mine)) / jnp.where(total > 0, total, 1)
            found = plain(theta, mine, jax.random.fold_in(rng, number))
            return jax.tree.map(lambda old, new: old + share * new, sums, found), None

        # A part is every parts-th row: rows lie on the mesh in order, so each device holds its share of each part.
        split = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)
        zero = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), theta))
        sums: tuple[Array, Any] = jax.lax.scan(add, zero, (split, jnp.arange(parts)))[0]
        return sums

    return gradient
