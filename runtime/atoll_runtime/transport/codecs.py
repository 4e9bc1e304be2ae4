"""A fragment on the wire: bfloat16 or float32, little-endian, or blocks of eight or four bits (numpy only)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import Array
from atoll_runtime.transport import blocks

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bf16": BF16, "int8": BF16, "int4": BF16}
"""The dtype in which contributions are merged and learners take versions, by the run's codec."""
BLOCK = 1 << 18
"""Elements converted at a time, so that temporaries stay small."""


def whole(run: str) -> str:
    """The codec of whole versions in a run of codec `run`."""
    return "float32" if run == "float32" else "bf16"


def encode(values: Array, codec: str, padded: int) -> memoryview:
    """A float32 vector in the codec's dtype, filled with zeros up to `padded` elements. Rounds to nearest even."""
    out = np.zeros(padded, DTYPES[codec])
    for start in range(0, values.size, BLOCK):
        out[start : start + BLOCK][: values.size - start] = values[start : start + BLOCK]
    return memoryview(out.view(np.uint8).data)


def view(body: bytearray | memoryview, codec: str) -> NDArray[Any]:
    """The elements of bytes in the codec's dtype, without a copy."""
    return np.frombuffer(body, DTYPES[codec])


def size(elements: int, codec: str) -> int:
    """Bytes of a part on the wire."""
    return blocks.size(elements, codec) if codec in blocks.LEVELS else elements * DTYPES[codec].itemsize


def pack(part: NDArray[Any], codec: str) -> memoryview:
    """The wire bytes of float values of any width."""
    if codec in blocks.LEVELS:
        return blocks.encode(part, codec)
    return memoryview(np.ascontiguousarray(part.astype(DTYPES[codec], copy=False)).view(np.uint8).data)


def unpack(body: memoryview, codec: str, elements: int, run: str) -> memoryview:
    """Converts a body that was sent in `codec` to the dtype of the run's codec."""
    if codec in blocks.LEVELS:
        return encode(blocks.decode(body, codec, elements), run, elements)
    if DTYPES[codec] != DTYPES[run]:
        return memoryview(view(body, codec).astype(DTYPES[run]).view(np.uint8).data)
    return body


def decode(body: bytearray | memoryview, codec: str, out: Array) -> None:
    """Writes the elements of `body`, in the codec's dtype, into float32 `out`. Leaves out elements beyond the end of
    `out`, which are padding."""
    wire = view(body, codec)[: out.size]
    for start in range(0, out.size, BLOCK):
        block = wire[start : start + BLOCK]
        if DTYPES[codec].itemsize == 2:  # a shift of the bits: faster than the dtype's own cast
            out[start : start + BLOCK] = (block.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            out[start : start + BLOCK] = block
