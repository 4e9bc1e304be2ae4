"""The interface of a user's task.

Its parameters may be any tree of floating arrays, such as nested dicts of Flax or the arrays of an Equinox module.
"""

from __future__ import annotations

from typing import Any, Protocol

from jax import Array

from atoll_runtime.model.decoder import Batch


class Task(Protocol):
    """The object that `spec.model.task: module:attribute` names, or returns when it is called without arguments.

    Neither the import nor that call may compute with JAX, because a unit's hosts connect only after it.
    A task may also have

    - `evaluate(params, batch)`: the loss on held-out data. Without it, `loss` with a fixed key is used.
    - `axes`: flat name → the name of each dimension, from `atoll_runtime.model.rules.RULES`. A tensor with `layers` as
      its first is cut into fragments by layer. A tensor with a `vocabulary` is merged by the direct mean.
    """

    def init(self, rng: Array) -> Any:
        """Initial values, which are converted to float32. Called under `jit`, on the syncer's CPU."""

    def loss(self, params: Any, batch: Batch, rng: Array) -> Array:
        """Mean over the batch weighted by its `weights` (see `Batch`), a scalar. Rows of weight 0 only fill it up."""
