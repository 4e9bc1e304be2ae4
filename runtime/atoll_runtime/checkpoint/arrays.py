"""Arrays in the bucket, in bounded time: Orbax or TensorStore writes them, TensorStore reads any part of them.

The format is that of Orbax: zarr in OCDBT, here without compression, because float32 weights hardly shrink.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorstore

from atoll_runtime.checkpoint.bucket import Bucket, Damaged, patience
from atoll_runtime.checkpoint.deadline import Call, in_time, late
from atoll_runtime.payloads import StoreError

logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax writes a dozen lines for each save

TIMEOUT = 120.0
"""Seconds for one call, in addition to those for its bytes. A small save takes one second on an idle machine."""
ATTEMPTS = 3
"""Attempts to read arrays from a bucket that answers, before they count as damaged."""
FIRST_WAIT = 0.5
"""Seconds before the second attempt; doubles, with jitter."""
STUCK = 600.0
"""Seconds after which a call that was given up counts as one that never comes back."""
PIECE = 4 << 30
"""Bytes that one call reads, if no array is larger. A call that hangs is given up after six minutes."""

CACHE = 100_000_000
"""Bytes of the cache for the folders' indices, so that each is read once."""

MERGED = {
    "experimental_read_coalescing_threshold_bytes": 0,
    "experimental_read_coalescing_merged_bytes": 16 << 20,
    "experimental_read_coalescing_interval": "2ms",
}
"""Adjacent blocks of a file are read by one request of up to this many bytes."""

Index = tuple[Any, ...]
"""The part of an array to read, as a NumPy index."""
T = TypeVar("T")

CALLS = "arrays"
"""Name of the calls' threads."""


@dataclass(frozen=True, slots=True)
class Chunked:
    """An array to be written, and the axes along which each index is a chunk of its own."""

    value: np.ndarray
    axes: tuple[int, ...] = ()


Tree = Mapping[str, Mapping[str, Chunked]]
"""Arrays by group and name."""


@dataclass(frozen=True, slots=True)
class Request:
    """A part of an array in a folder."""

    uri: str
    """URI of the folder."""
    group: str
    name: str
    index: Index
    size: int
    """Bytes."""


class _Unreadable(Exception):
    """TensorStore cannot read the array of a request; the message has its reason."""


def write(bucket: Bucket, item: str, tree: Tree, *, alone: bool = False) -> None:
    """Saves arrays in the folder `item`, over whatever an earlier attempt left there.

    Args:
        alone: this is one of several hosts, and writes a folder of its own, each array as one chunk. Orbax would
            write NumPy arrays only on process 0, so TensorStore writes the same format without Orbax's metadata.

    Raises:
        StoreError: the arrays cannot be written, or not in time.
    """
    uri = bucket.address(item)
    size = sum(each.value.nbytes for group in tree.values() for each in group.values())
    try:
        _in_time(patience(size, TIMEOUT), lambda: (_write_alone if alone else _write)(uri, tree), uri)
    except Exception as error:
        # Orbax and TensorStore raise what their drivers raise.
        raise StoreError(f"{uri}: cannot be written: {' '.join(str(error).split())}") from error


def read(requests: Iterable[Request], ask: Callable[[], object]) -> Iterator[np.ndarray]:
    """Each request's values, in their order, `PIECE` bytes at a time.

    Args:
        ask: reads something else from the bucket, and raises `StoreError` if the bucket does not answer.

    Raises:
        Damaged: there is no such array, or it cannot be read.
        StoreError: the bucket does not answer.
    """
    for piece in _pieces(requests):
        yield from _patiently(piece, ask)


def _pieces(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Lists of requests, of at most `PIECE` bytes together or of one request."""
    piece, size = list[Request](), 0
    for request in requests:
        size += request.size
        if piece and size > PIECE:
            yield piece
            piece, size = [], request.size
        piece.append(request)
    if piece:
        yield piece


def _patiently(piece: list[Request], ask: Callable[[], object]) -> list[np.ndarray]:
    seconds = patience(sum(request.size for request in piece), TIMEOUT)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _in_time(seconds, lambda: _read(piece), piece[0].uri)
        except TimeoutError as error:
            raise StoreError(f"{piece[0].uri}: cannot be read: {error}") from error
        except _Unreadable as error:
            # TensorStore raises the same error for a bucket that fails as for damage. If the bucket does not answer,
            # `ask` raises that instead.
            ask()
            if attempt == ATTEMPTS:
                raise Damaged(str(error)) from error
        time.sleep(FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
    raise AssertionError("the last attempt returns or raises")


def ready(bucket: Bucket) -> None:
    """Raises `StoreError` while a call that was given up still runs: it has its arrays, and may still write."""
    try:
        _ready()
    except TimeoutError as error:
        raise StoreError(f"{bucket.uri}: {error}") from error


def _ready() -> None:
    for call in late(CALLS):
        raise TimeoutError(_named(call))


def settle() -> None:
    """Waits for calls that were given up, for each at most as long again as it had."""
    for call in late(CALLS):
        call.join(max(0.0, call.seconds - call.late))


def stuck() -> str:
    """Names a call that was given up `STUCK` seconds ago and still runs. It ends all checkpoints of this process, so
    the process should be restarted. Empty if there is none."""
    return next((_named(call) for call in late(CALLS) if call.late > STUCK), "")


def _named(call: Call) -> str:
    return f"an earlier call has not come back: {call.what}, late for {call.late:.0f} s"


def _in_time(seconds: float, call: Callable[[], T], uri: str) -> T:
    _ready()
    return in_time(seconds, call, CALLS, uri)


def _write(uri: str, tree: Tree) -> None:
    """Uses the synchronous v0 `Checkpointer`: the syncer saves from a worker, and v1 works only in the main thread."""
    import orbax.checkpoint as ocp  # takes a second; most processes that read never write
    from etils import epath

    items = {key: {name: each.value for name, each in group.items()} for key, group in tree.items()}
    chunks = {
        key: {name: ocp.SaveArgs(shard_axes=each.axes) for name, each in group.items()}
        for key, group in tree.items()
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as checkpointer:
        path = epath.Path(uri.removeprefix("file://"))
        checkpointer.save(path, args=ocp.args.PyTreeSave(items, save_args=chunks), force=True)


def _write_alone(uri: str, tree: Tree) -> None:
    with tensorstore.Transaction() as transaction:
        for key, group in tree.items():
            for name, each in group.items():
                metadata = {"shape": each.value.shape, "chunks": each.value.shape, "compressor": None}
                spec = {"metadata": metadata, "dtype": "float32", "store_data_equal_to_fill_value": True}
                store = tensorstore.open(
                    _spec(uri, key, name) | spec, create=True, delete_existing=True, transaction=transaction
                )
                store.result().write(each.value).result()


def _read(requests: Sequence[Request]) -> list[np.ndarray]:
    """Reads all requests at the same time."""
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE}})

    async def one(request: Request) -> np.ndarray:
        spec = _spec(request.uri, request.group, request.name)
        try:
            store = await tensorstore.open(spec, open=True, read=True, context=context)
            return np.asarray(await store[request.index].read())
        except Exception as error:
            lines = str(error).strip().splitlines()
            why = lines[0][:300] if lines else type(error).__name__
            raise _Unreadable(f"{request.uri}: cannot be read: {why}") from error

    async def everything() -> list[np.ndarray]:
        return await asyncio.gather(*map(one, requests))

    return asyncio.run(everything())


def _spec(uri: str, group: str, name: str) -> dict[str, Any]:
    store = {"driver": "ocdbt", "base": f"{uri}/", "path": f"{group}.{name}/", **MERGED}
    return {
        "driver": "zarr",
        "kvstore": store,
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
        "fill_missing_data_reads": False,
    }
