"""A dense decoder in pure functions: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Array names carry their axes: B batch, T time, D width, N heads, K key-value heads, H of a head, F hidden,
V vocabulary. The sizes are read from the parameters themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Params = dict[str, Any]
Batch = dict[str, Array]
"""`tokens` int32 [B, T+1]; `weights` float32 [B], 0 for a row that only fills the batch up."""

ROTARY_BASE = 10_000.0
NORM_EPSILON = 1e-6


def _same(x: Array) -> Array:
    return x


def loss(
    params: Params,
    batch: Batch,
    *,
    dtype: jnp.dtype[Any] | type = jnp.float32,
    remat: bool = False,
    place: Callable[[Array], Array] = _same,
) -> Array:
    """Mean cross-entropy of the next token, in nats, over the rows by their weight.

    Args:
        dtype: of the matrix products; parameters and the loss itself stay float32.
        remat: keep only each layer's input for the backward pass.
        place: puts an activation [B, …] where it belongs on the mesh.
    """
    tokens_BT1 = batch["tokens"]
    logits_BTV = forward(params, tokens_BT1[:, :-1], dtype=dtype, remat=remat, place=place)
    targets_BT = tokens_BT1[:, 1:]
    hit_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    nats_B = jnp.mean(jax.nn.logsumexp(logits_BTV, axis=-1) - hit_BT, axis=-1)
    return jnp.sum(nats_B * batch["weights"]) / jnp.sum(batch["weights"])


def forward(
    params: Params,
    tokens_BT: Array,
    *,
    dtype: jnp.dtype[Any] | type = jnp.float32,
    remat: bool = False,
    place: Callable[[Array], Array] = _same,
) -> Array:
    """Logits float32 [B, T, V] of the token that follows each position."""
    table_VD = params["embedding"]["table"].astype(dtype)
    x_BTD = place(table_VD[tokens_BT])
    rotation = rotary(tokens_BT.shape[1], params["layers"]["attention"]["wq"].shape[-1])

    def layer(x_BTD: Array, weights: Params) -> tuple[Array, None]:
        weights = jax.tree.map(lambda w: w.astype(dtype), weights)
        x_BTD = place(x_BTD + attention(weights["attention"], x_BTD, rotation))
        return place(x_BTD + mlp(weights["mlp"], x_BTD)), None

    x_BTD, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x_BTD, params["layers"])
    x_BTD = normalise(x_BTD, params["final"]["norm"].astype(dtype))
    head_DV = params["head"]["table"].astype(dtype) if "head" in params else table_VD.T
    return place(jnp.matmul(x_BTD, head_DV, preferred_element_type=jnp.float32))


def normalise(x_BTD: Array, scale_D: Array) -> Array:
    """RMSNorm; the mean square is taken in float32."""
    mean_BT1 = jnp.mean(jnp.square(x_BTD.astype(jnp.float32)), axis=-1, keepdims=True)
    return x_BTD * jax.lax.rsqrt(mean_BT1 + NORM_EPSILON).astype(x_BTD.dtype) * scale_D


def rotary(length: int, head: int) -> tuple[Array, Array]:
    """Sine and cosine, each float32 [T, 1, H/2]."""
    frequency = ROTARY_BASE ** (-jnp.arange(0, head, 2, dtype=jnp.float32) / head)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None, None] * frequency
    return jnp.sin(angle), jnp.cos(angle)


def rotate(x_BTNH: Array, rotation: tuple[Array, Array]) -> Array:
    """Turns the two halves of each head by the position's angle."""
    sine, cosine = (r.astype(x_BTNH.dtype) for r in rotation)
    left, right = jnp.split(x_BTNH, 2, axis=-1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def attention(weights: Params, x_BTD: Array, rotation: tuple[Array, Array]) -> Array:
    """Causal self-attention of one layer, before the residual sum."""
    y_BTD = normalise(x_BTD, weights["norm"])
    q_BTNH = rotate(jnp.einsum("BTD,DNH->BTNH", y_BTD, weights["wq"]), rotation)
    k_BTKH = rotate(jnp.einsum("BTD,DKH->BTKH", y_BTD, weights["wk"]), rotation)
    v_BTKH = jnp.einsum("BTD,DKH->BTKH", y_BTD, weights["wv"])
    mixed_BTNH = jax.nn.dot_product_attention(q_BTNH, k_BTKH, v_BTKH, is_causal=True)
    return jnp.einsum("BTNH,NHD->BTD", mixed_BTNH, weights["wo"])


def mlp(weights: Params, x_BTD: Array) -> Array:
    """SwiGLU of one layer, before the residual sum."""
    y_BTD = normalise(x_BTD, weights["norm"])
    gate_BTF = jax.nn.silu(y_BTD @ weights["gate"])
    out_BTD: Array = (gate_BTF * (y_BTD @ weights["up"])) @ weights["down"]
    return out_BTD
