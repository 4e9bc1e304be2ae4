"""What a task of the user's own is.

Its parameters may be any tree of floating arrays: nested dicts of Flax, the arrays of an Equinox module.
"""

from __future__ import annotations

from typing import Any, Protocol

from jax import Array

from atoll_runtime.model.decoder import Batch


class Task(Protocol):
    """What `spec.model.task: module:attribute` names, or makes when it is called without arguments.

    Neither the import nor that call may compute with JAX: the hosts of a unit join one another only after it.
    Besides, a task may have

    - `evaluate(params, batch)`: the loss on held-out data; without it, `loss` with a fixed key;
    - `axes`: flat name → what each dimension is, by the names in `atoll_runtime.model.rules.RULES`. A tensor whose
      first one is `layers` is cut into fragments by layer; one that has a `vocabulary` is merged by the direct mean.
    """

    def init(self, rng: Array) -> Any:
        """First values, float32 or to be so; called under `jit`, on the syncer's CPU."""

    def loss(self, params: Any, batch: Batch, rng: Array) -> Array:
        """Mean over the batch by its `weights` (see `Batch`), a scalar; rows of weight 0 only fill the batch up."""
