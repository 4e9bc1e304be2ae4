"""Reads and writes named float32 arrays in a folder of the bucket: one Zarr array each, by TensorStore.

Every array has a time-out of its own that begins when the one before it has ended, so slow progress is no failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar
from urllib.parse import quote

import numpy as np
import tensorstore as ts

from atoll_runtime.checkpoint.bucket import patience

TIMEOUT = 120.0
"""Seconds without progress, besides the time that the bytes of an array take."""
CHUNK = 16 << 20
"""Elements of one object: 64 MiB."""

T = TypeVar("T")
Tree = Mapping[str, Mapping[str, np.ndarray]]


def write(uri: str, tree: Tree) -> None:
    """Writes groups of arrays below `uri`, where nothing may be.

    Raises:
        TimeoutError: it made no progress, and may go on writing there.
        ValueError: TensorStore's error.
    """
    named = [(f"{group}/{name}", value) for group, values in tree.items() for name, value in values.items()]
    opened = [_open(uri, name, value.shape) for name, value in named]
    writes = [
        _result(array, value.nbytes).write(value) for array, (_, value) in zip(opened, named, strict=True)
    ]
    for written, (_, value) in zip(writes, named, strict=True):
        _result(written.commit, value.nbytes)


def read(uri: str, group: str, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads some arrays of a group. A part of an array that is missing in the bucket is read as zeros.

    Raises:
        TimeoutError: it made no progress.
        ValueError: TensorStore's error.
    """
    opened = {name: _open(uri, f"{group}/{name}") for name in names}
    reads = {name: _result(array, 0).read() for name, array in opened.items()}
    return {name: _result(found, 4 * opened[name].result().size) for name, found in reads.items()}


def _open(uri: str, name: str, shape: tuple[int, ...] | None = None) -> ts.Future[ts.TensorStore]:
    """Opens an array; creates it where `shape` is given."""
    spec = {"driver": "zarr3", "kvstore": f"{quote(f'{uri}/{name}', safe='/:')}/"}
    if shape is None:
        return ts.open(spec, read=True)
    return ts.open(spec, create=True, dtype=ts.float32, shape=shape, chunk_layout=_LAYOUT)


_LAYOUT = ts.ChunkLayout(chunk_elements=CHUNK)


def _result(future: ts.Future[T], size: int) -> T:
    """Waits for an array of `size` bytes."""
    try:
        return future.result(timeout=patience(size, TIMEOUT))
    except TimeoutError:
        raise TimeoutError(f"no answer within {round(patience(size, TIMEOUT), 1):g} s") from None
