"""A mixture of experts. Each token goes to its best few experts, and none is dropped at any load.

Array names carry their axes: B batch, T time, D width, E experts, C chosen experts, S tokens, M = S·C rows by expert.
Top-k routing with load balance as in Switch Transformers (arXiv 2101.03961), z-loss as in ST-MoE (arXiv 2202.08906).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from atoll_runtime.model.rules import EXPERT, ROWS, TENSOR

EXACT = jax.lax.Precision.HIGHEST


class Routes(NamedTuple):
    """The experts of each token, and the router's losses."""

    experts_BTC: Array
    """int32"""
    shares_BTC: Array
    """float32; the shares of one token sum to 1."""
    balance: Array
    """Load-balance loss: 1 if all experts get equal load, at most E/C."""
    z: Array
    """Mean square of the router's log-normaliser."""


def route(router_DE: Array, x_BTD: Array, count: int, weights_BT: Array) -> Routes:
    """The `count` best experts of each token, in float32 throughout, also on chips that multiply in bf16 by default.
    Losses are weighted means over tokens."""
    logits_BTE = jnp.einsum("BTD,DE->BTE", x_BTD.astype(jnp.float32), router_DE, precision=EXACT)
    chances_BTE = jax.nn.softmax(logits_BTE)
    best_BTC, experts_BTC = jax.lax.top_k(chances_BTE, count)
    shares_BTC = best_BTC / jnp.sum(best_BTC, axis=-1, keepdims=True)

    weights_BT = weights_BT / jnp.maximum(jnp.sum(weights_BT), 1e-6)
    taken_BTE = jnp.sum(jax.nn.one_hot(experts_BTC, chances_BTE.shape[-1]), axis=2) / count
    load_E = jnp.einsum("BTE,BT->E", taken_BTE, weights_BT, precision=EXACT)
    chance_E = jnp.einsum("BTE,BT->E", chances_BTE, weights_BT, precision=EXACT)
    balance = chances_BTE.shape[-1] * jnp.sum(load_E * chance_E)
    z = jnp.sum(jnp.square(jax.nn.logsumexp(logits_BTE, axis=-1)) * weights_BT)
    return Routes(experts_BTC, shares_BTC, balance, z)


def mix(weights: dict[str, Array], x_BTD: Array, routes: Routes, mesh: Mesh | None) -> Array:
    """The outputs of each token's experts, summed by share: SwiGLU with `gate`, `up` [E, D, F], `down` [E, F, D]."""
    gate, up, down = weights["gate"], weights["up"], weights["down"]
    if mesh is None:
        return _own(gate, up, down, x_BTD, routes.experts_BTC, routes.shares_BTC)
    rows, wide = PartitionSpec(ROWS), PartitionSpec(EXPERT, None, TENSOR)
    each = jax.shard_map(
        _shard,
        mesh=mesh,
        in_specs=(wide, wide, PartitionSpec(EXPERT, TENSOR, None), rows, rows, rows),
        out_specs=rows,
    )
    out_BTD: Array = each(gate, up, down, x_BTD, routes.experts_BTC, routes.shares_BTC)
    return out_BTD


def _shard(gate: Array, up: Array, down: Array, x_BTD: Array, experts_BTC: Array, shares_BTC: Array) -> Array:
    """The work of one chip. Its experts process the tokens of all chips that share the layer's experts with it."""
    x_BTD, experts_BTC, shares_BTC = (
        jax.lax.all_gather(each, EXPERT, axis=0, tiled=True) for each in (x_BTD, experts_BTC, shares_BTC)
    )
    first = jax.lax.axis_index(EXPERT) * gate.shape[0]
    out_BTD = _own(gate, up, down, x_BTD, experts_BTC - first, shares_BTC)
    out_BTD = jax.lax.psum(out_BTD, TENSOR)
    own_BTD: Array = jax.lax.psum_scatter(out_BTD, EXPERT, scatter_dimension=0, tiled=True)
    return own_BTD


def _own(gate: Array, up: Array, down: Array, x_BTD: Array, experts_BTC: Array, shares_BTC: Array) -> Array:
    """The output of the local experts, 0 … E-1. A token's other experts have numbers outside that range."""
    count, chosen = gate.shape[0], experts_BTC.shape[-1]
    x_SD = x_BTD.reshape(-1, x_BTD.shape[-1])
    experts_M = experts_BTC.reshape(-1)
    here_M = (experts_M >= 0) & (experts_M < count)
    experts_M = jnp.where(here_M, experts_M, count)  # rows of other experts come last, in no group
    order_M = jnp.argsort(experts_M, stable=True)
    sizes_E = jnp.bincount(experts_M, length=count + 1)[:count].astype(jnp.int32)

    # Rows in no group have undefined values in the products and in their gradients, so they are masked.
    grouped_M1 = (jnp.arange(experts_M.size) < jnp.sum(sizes_E))[:, None]
    x_MD = jnp.where(grouped_M1, x_SD[order_M // chosen], 0)
    inner_MF = jax.nn.silu(jax.lax.ragged_dot(x_MD, gate, sizes_E)) * jax.lax.ragged_dot(x_MD, up, sizes_E)
    y_MD = jax.lax.ragged_dot(inner_MF, down, sizes_E)
    shares_M = jnp.where(here_M, shares_BTC.reshape(-1), 0).astype(y_MD.dtype)
    y_MD = jnp.where(here_M[:, None], y_MD[jnp.argsort(order_M)], 0) * shares_M[:, None]
    return jnp.sum(y_MD.reshape(-1, chosen, y_MD.shape[-1]), axis=1).reshape(x_BTD.shape)
