"""What a fragment is on the wire: bfloat16 or float32, little-endian; pushed in int4 besides (numpy only)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import Array
from atoll_runtime.transport import int4

DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("<f4"),
    "int4": np.dtype(ml_dtypes.bfloat16),
}
"""Codec name to the dtype of its elements, as they are merged and fetched; the names of `OuterSpec.codec`."""
BLOCK = 1 << 18
"""Elements converted at a time, so that temporaries stay small."""


def encode(values: Array, codec: str, padded: int) -> memoryview:
    """Wire bytes of a float32 vector, zeros up to `padded` elements. Rounds to nearest even."""
    out = np.zeros(padded, DTYPES[codec])
    for start in range(0, values.size, BLOCK):
        out[start : start + BLOCK][: values.size - start] = values[start : start + BLOCK]
    return memoryview(out.view(np.uint8).data)


def view(body: bytearray | memoryview, codec: str) -> NDArray[Any]:
    """The elements of wire bytes, without a copy."""
    return np.frombuffer(body, DTYPES[codec])


def pushed_size(elements: int, codec: str) -> int:
    """Bytes of an outer gradient's part as it is pushed."""
    return int4.size(elements) if codec == "int4" else elements * DTYPES[codec].itemsize


def pack(part: NDArray[Any], codec: str) -> memoryview:
    """A part in the codec's dtype as it is pushed."""
    return (
        int4.encode(part) if codec == "int4" else memoryview(np.ascontiguousarray(part).view(np.uint8).data)
    )


def unpack(body: memoryview, codec: str, elements: int) -> memoryview:
    """A pushed part in the codec's dtype, as it is merged."""
    return encode(int4.decode(body, elements), codec, elements) if codec == "int4" else body


def decode(body: bytearray | memoryview, codec: str, out: Array) -> None:
    """Writes the elements of `body` into float32 `out`; what lies beyond its end (padding) is left out."""
    wire = view(body, codec)[: out.size]
    for start in range(0, out.size, BLOCK):
        block = wire[start : start + BLOCK]
        if DTYPES[codec].itemsize == 2:  # a shift of the bits: faster than the dtype's own cast
            out[start : start + BLOCK] = (block.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            out[start : start + BLOCK] = block
