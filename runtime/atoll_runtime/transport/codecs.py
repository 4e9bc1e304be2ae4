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


def whole(run: str) -> str:
    """The codec of whole versions in a run of codec `run`."""
    return "float32" if run == "float32" else "bf16"


def encode(values: Array, codec: str, padded: int) -> memoryview:
    """A float32 vector in the codec's dtype, filled with zeros up to `padded` elements. Rounds to nearest even."""
    out = np.zeros(padded, DTYPES[codec])
    out[: values.size] = values
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
