"""Vectors in four or eight bits: blocks of 64 elements, each with a scale (numpy only).

A block is its scale, bfloat16, and its elements as multiples of the scale, in two's complement: -7 … 7, two a byte, the
first in the low half (int4, 4.25 bits an element); or -127 … 127, one a byte (int8, 8.25 bits). A learner's part begins
at a block. The last block is filled up with zeros. Compared with powers of two (E3M0), even steps halve the error of
normally distributed values.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import BLOCK, Array

LEVELS = {"int4": 7, "int8": 127}
"""Largest multiple of the scale, by codec."""
SCALE = np.dtype(ml_dtypes.bfloat16)
TINY = float(np.finfo(np.float32).tiny)
CHUNK = 1 << 18
"""Elements converted at a time, so that temporaries stay small; a multiple of BLOCK."""


def size(elements: int, codec: str) -> int:
    """Bytes of a body."""
    return -(-elements // BLOCK) * (2 + _width(codec))


def encode(values: NDArray[Any], codec: str) -> memoryview:
    """A body from float values of any width. A block with a value that is not finite decodes to such values."""
    out = np.zeros(size(values.size, codec), np.uint8)
    scales, levels = _split(out, codec)
    most = LEVELS[codec]
    for start in range(0, values.size, CHUNK):
        chunk = values[start : start + CHUNK].astype(np.float32)
        count = -(-chunk.size // BLOCK)
        table = np.zeros((count, BLOCK), np.float32)
        table.reshape(-1)[: chunk.size] = chunk
        first = start // BLOCK
        scale = (np.abs(table).max(axis=1) * np.float32(1 / most)).astype(SCALE)
        scales[first : first + count] = scale
        divisor = scale.astype(np.float32)
        divisor[~(np.isfinite(divisor) & (divisor >= TINY))] = np.inf  # levels of 0: the scale says the rest
        with np.errstate(invalid="ignore"):
            steps = np.nan_to_num(np.rint(table / divisor[:, None]))
        found = np.clip(steps, -most, most).astype(np.int8).view(np.uint8)
        if codec == "int4":
            found = (found[:, 0::2] & 0xF) | (found[:, 1::2] << 4)
        levels[first : first + count] = found
    return memoryview(out.data)


def decode(body: bytearray | memoryview, codec: str, elements: int) -> Array:
    """Float32 [elements] of a body, which must have `size(elements, codec)` bytes."""
    scales, levels = _split(np.frombuffer(body, np.uint8), codec)
    factors = scales.astype(np.float32)
    values = np.empty((len(levels), BLOCK), np.float32)
    for first in range(0, len(levels), CHUNK // BLOCK):
        span = slice(first, first + CHUNK // BLOCK)
        if codec == "int4":
            pairs = np.ascontiguousarray(levels[span])
            halves = np.empty((*pairs.shape, 2), np.uint8)
            halves[..., 0], halves[..., 1] = pairs & 0xF, pairs >> 4
            signed = (halves.reshape(len(pairs), BLOCK) ^ 8).astype(np.int8) - 8
        else:
            signed = np.ascontiguousarray(levels[span]).view(np.int8)
        with np.errstate(invalid="ignore"):  # zero times an infinite scale
            np.multiply(signed, factors[span, None], out=values[span])
    return values.reshape(-1)[:elements]


def _width(codec: str) -> int:
    """Bytes of a block's elements."""
    return BLOCK // 2 if codec == "int4" else BLOCK


def _split(body: NDArray[np.uint8], codec: str) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Views of the scales [blocks] and the levels' bytes [blocks, width]."""
    table = body.reshape(-1, size(1, codec))
    return table[:, : SCALE.itemsize].view(SCALE)[:, 0], table[:, SCALE.itemsize :]
