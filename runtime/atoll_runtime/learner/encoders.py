"""Programs that encode this host's part of a fragment for the network."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from atoll_runtime.protocol.fragments import BLOCK
from atoll_runtime.transport.blocks import LEVELS, TINY

Programs = dict[int, Callable[[Array, Array], tuple[Array, ...]]]
"""By size of the part."""


class Encoders:
    """Programs of the host alone, which need no agreement with the unit's other hosts.

    Args:
        sizes: elements of this host's part of each fragment.
        sharding: of these parts.
    """

    def __init__(self, sizes: Collection[int], sharding: NamedSharding) -> None:
        self._sizes, self._sharding = sorted(set(sizes)), sharding
        self._encode = jax.jit(_encode, static_argnames=("codec",), out_shardings=sharding)
        self._compiler = ThreadPoolExecutor(1, "encoders")
        self._programs: dict[str, Future[Programs]] = {}
        self._codec = ""

    def choose(self, codec: str) -> str:
        """The codec to use now: this one once its programs are compiled, which another thread does while training goes
        on with the last one. The first is waited for. Raises what the compiler raised."""
        programs = self._compiled(codec)
        if programs.done() or not self._codec:
            programs.result()
            self._codec = codec
        return self._codec

    def encode(self, anchor: Array, flat: Array, codec: str) -> tuple[Array, ...]:
        """anchor − flat in columns that follow each other, the same bits as `transport/codecs.py`. Waits for the
        compiler where `choose` did not give this codec."""
        return self._compiled(codec).result()[anchor.size](anchor, flat)

    def _compiled(self, codec: str) -> Future[Programs]:
        if codec not in self._programs:
            self._programs[codec] = self._compiler.submit(self._compile, codec)
        return self._programs[codec]

    def _compile(self, codec: str) -> Programs:
        parts = {
            size: jax.ShapeDtypeStruct((size,), jnp.float32, sharding=self._sharding) for size in self._sizes
        }
        return {size: self._encode.lower(part, part, codec=codec).compile() for size, part in parts.items()}


def _encode(anchor: Array, flat: Array, *, codec: str) -> tuple[Array, ...]:
    delta = anchor - flat
    if codec not in LEVELS:
        return (delta.astype(jnp.float32 if codec == "float32" else jnp.bfloat16),)
    most = LEVELS[codec]
    table = delta.reshape(-1, BLOCK)
    scale = (jnp.abs(table).max(axis=1) * np.float32(1 / most)).astype(jnp.bfloat16)
    divisor = scale.astype(jnp.float32)
    divisor = jnp.where(jnp.isfinite(divisor) & (divisor >= TINY), divisor, jnp.inf)
    steps = jnp.nan_to_num(jnp.rint(table / divisor[:, None]))
    levels = jnp.clip(steps, -most, most).astype(jnp.int8).astype(jnp.uint8)
    if codec == "int4":
        levels = (levels[:, 0::2] & 0xF) | (levels[:, 1::2] << 4)
    return scale, levels.reshape(-1)
