"""A step's gradient in parts, one after the other: activations of one part stand in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from atoll_runtime.data.packing import counted
from atoll_runtime.model.objective import Loss, Tensors

Gradient = Callable[[Tensors, dict[str, Array], Array], tuple[Array, Any]]


def accumulated(loss: Loss, parts: int) -> Gradient:
    """Value and gradient of `loss`, a mean by weight over the batch, for batches that `parts` divides.

    The losses of a mixture's routers are means over a part then, not over the batch.
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

        # Every parts-th row, for rows lie on the mesh in order: each device finds its share of a part on itself.
        split = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)
        zero = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), theta))
        sums: tuple[Array, Any] = jax.lax.scan(add, zero, (split, jnp.arange(parts)))[0]
        return sums

    return gradient
