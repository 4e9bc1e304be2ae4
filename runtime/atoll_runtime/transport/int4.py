"""Vectors in four bits: blocks of 64 elements, each with a scale (numpy only).

A body holds the blocks' scales, bfloat16, then two elements a byte, the first in the low half: -7 … 7 times the scale
of its block, as two's complement. 4.25 bits an element. A learner's part starts a block; the last one is filled up
with zeros. Against powers of two (E3M0) the even steps halve the error of normally distributed values.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import Array

BLOCK = 64
"""Elements that share a scale. Of normal values, nearest steps miss by 10 % of their length; with 256 by 12 %."""
LEVELS = 7
SCALE = np.dtype(ml_dtypes.bfloat16)
TINY = float(np.finfo(np.float32).tiny)
CHUNK = 1 << 18
"""Elements converted at a time, so that temporaries stay small; a multiple of BLOCK."""


def size(elements: int) -> int:
    """Bytes of a body."""
    return -(-elements // BLOCK) * (2 + BLOCK // 2)


def encode(values: NDArray[Any]) -> memoryview:
    """A body from float values of any width. A block with a value that is not finite is decoded to such values."""
    blocks = -(-values.size // BLOCK)
    out = np.zeros(size(values.size), np.uint8)
    scales = out[: blocks * SCALE.itemsize].view(SCALE)
    nibbles = out[blocks * SCALE.itemsize :]
    for start in range(0, values.size, CHUNK):
        chunk = values[start : start + CHUNK].astype(np.float32)
        count = -(-chunk.size // BLOCK)
        table = np.zeros((count, BLOCK), np.float32)
        table.reshape(-1)[: chunk.size] = chunk
        first = start // BLOCK
        scale = (np.abs(table).max(axis=1) / LEVELS).astype(SCALE)
        scales[first : first + count] = scale
        divisor = scale.astype(np.float32)
        divisor[~(np.isfinite(divisor) & (divisor >= TINY))] = np.inf  # all zeros: the scale says the rest
        with np.errstate(invalid="ignore"):
            steps = np.nan_to_num(np.rint(table / divisor[:, None]))
        levels = np.clip(steps, -LEVELS, LEVELS).astype(np.int8).view(np.uint8).reshape(-1)
        low, high = levels[0::2] & 0xF, levels[1::2] << 4
        nibbles[start // 2 : start // 2 + low.size] = low | high
    return memoryview(out.data)


def decode(body: bytearray | memoryview, elements: int) -> Array:
    """Float32 [elements] of a body, which must have `size(elements)` bytes."""
    raw, blocks = np.frombuffer(body, np.uint8), -(-elements // BLOCK)
    scales = raw[: blocks * SCALE.itemsize].view(SCALE).astype(np.float32)
    nibbles = raw[blocks * SCALE.itemsize :].reshape(blocks, BLOCK // 2)
    values = np.empty((blocks, BLOCK), np.float32)
    for first in range(0, blocks, CHUNK // BLOCK):
        span = slice(first, first + CHUNK // BLOCK)
        pairs = nibbles[span]
        levels = np.empty((*pairs.shape, 2), np.uint8)
        levels[..., 0], levels[..., 1] = pairs & 0xF, pairs >> 4
        signed = (levels.reshape(len(pairs), BLOCK) ^ 8).astype(np.int8) - 8
        with np.errstate(invalid="ignore"):  # zero times an infinite scale
            np.multiply(signed, scales[span, None], out=values[span])
    return values.reshape(-1)[:elements]
