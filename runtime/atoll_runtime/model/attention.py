"""Causal attention within documents: by dot products, or by JAX's splash kernel on TPUs.

Array names carry their axes: B batch, T time, N heads, K key-value heads, H head size.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from atoll_runtime.model.rules import ROWS, TENSOR

ROTARY_BASE = 10_000.0
LANES = 128
"""Splash works on multiples of this many positions, and without padding on heads of multiples of this size."""
LARGEST_BLOCK = 512
"""Most positions in a block; not tuned on a chip yet."""


def splashes(platform: str, length: int, head: int) -> bool:
    """Whether the kernel computes attention on `platform`. It needs a TPU, and sizes that LANES divides."""
    return platform == "tpu" and length % LANES == 0 and head % LANES == 0


def positions(segments_BT: Array) -> Array:
    """int32 [B, T]: the distance of each token from the first one of its document."""
    at_T = jnp.arange(segments_BT.shape[1])
    first_BT = jnp.diff(segments_BT, axis=1, prepend=segments_BT[:, :1]) != 0
    return at_T - jax.lax.cummax(jnp.where(first_BT, at_T, 0), axis=1)


def rotary(positions: Array, head: int) -> tuple[Array, Array]:
    """Sine and cosine, each float32 [..., T, 1, H/2], of positions [..., T]."""
    frequency = ROTARY_BASE ** (-jnp.arange(0, head, 2, dtype=jnp.float32) / head)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency
    return jnp.sin(angle), jnp.cos(angle)


def rotate(x_BTNH: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotates the two halves of each head by the position's angle."""
    sine, cosine = (r.astype(x_BTNH.dtype) for r in rotation)
    left, right = jnp.split(x_BTNH, 2, axis=-1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def attend(
    q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, segments_BT: Array | None, mesh: Mesh | None
) -> Array:
    """Each token's mixture of the values up to its own, within its document: [B, T, N, H]."""
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    if splashes(platform, *q_BTNH.shape[1::2]):
        return splash(q_BTNH, k_BTKH, v_BTKH, segments_BT, mesh)
    return dot(q_BTNH, k_BTKH, v_BTKH, segments_BT)


def dot(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, segments_BT: Array | None) -> Array:
    """Attention by matrix products. Holds the mask and the scores of all pairs in memory."""
    same_B1TT = (
        None if segments_BT is None else segments_BT[:, None, :, None] == segments_BT[:, None, None, :]
    )
    return jax.nn.dot_product_attention(q_BTNH, k_BTKH, v_BTKH, mask=same_B1TT, is_causal=True)


def splash(
    q_BTNH: Array,
    k_BTKH: Array,
    v_BTKH: Array,
    segments_BT: Array | None,
    mesh: Mesh | None,
    *,
    interpret: bool = False,
) -> Array:
    """Attention by blocks that stay on the chip. Each chip computes its own rows and heads.

    Args:
        interpret: run the kernel's steps in JAX, slowly, on any platform.
    """
    run = functools.partial(_splash, interpret=interpret)
    if mesh is None:
        return run(q_BTNH, k_BTKH, v_BTKH, segments_BT)
    heads = PartitionSpec(ROWS, None, TENSOR)
    each = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(heads, heads, heads, None if segments_BT is None else PartitionSpec(ROWS)),
        out_specs=heads,
        check_vma=False,  # a kernel does not say along which axes its result varies
    )
    mixed_BTNH: Array = each(q_BTNH, k_BTKH, v_BTKH, segments_BT)
    return mixed_BTNH


def _splash(
    q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, segments_BT: Array | None, *, interpret: bool
) -> Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import (  # takes 0.4 s, and is needed only on TPUs
        splash_attention_kernel as kernels,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, length, heads, head = q_BTNH.shape
    block = max(size for size in range(LANES, LARGEST_BLOCK + 1, LANES) if length % size == 0)
    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * heads)
    sizes = kernels.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    attention = kernels.make_splash_mha(
        mask, head_shards=1, q_seq_shards=1, block_sizes=sizes, interpret=interpret
    )
    scaled_BNTH = (q_BTNH * np.float32(head**-0.5).astype(q_BTNH.dtype)).swapaxes(1, 2)
    ids = None if segments_BT is None else kernels.SegmentIds(q=segments_BT, kv=segments_BT)
    mixed_BNTH: Array = jax.vmap(attention)(scaled_BNTH, k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2), ids)
    return mixed_BNTH.swapaxes(1, 2).astype(q_BTNH.dtype)
