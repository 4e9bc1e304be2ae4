"""One shard's part of a global cut: its arrays, and the manifest that is written after them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from atoll_runtime.checkpoint import arrays, layout, manifest
from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.checkpoint.manifest import PartManifest, TensorEntry
from atoll_runtime.payloads import Part, Slice, StoreError

ATTEMPTS = 3
"""To read arrays in a bucket that answers, before they are called damaged."""
FIRST_WAIT = 0.5
"""Seconds before the second attempt; doubles, with jitter."""
PIECE = 4 << 30
"""Bytes that one call of Orbax reads, where no tensor is larger: one that hangs is given up after six minutes."""

Kind = Literal["theta", "momentum"]


def name_of(part: Part) -> str:
    """Of its manifest, relative to the run's URI."""
    return layout.part(part.step, part.shard, part.shards)


def write(bucket: Bucket, part: Part, entries: Mapping[str, TensorEntry], item: str) -> None:
    """Arrays into the folder `item`, then the manifest.

    Raises:
        TimeoutError: the arrays did not arrive in time, and may go on arriving.
        StoreError: they cannot be written.
    """
    where = bucket.address(item)
    tree = {
        "theta": {name: own.theta for name, own in part.tensors.items()},
        "momentum": {name: own.momentum for name, own in part.tensors.items()},
    }
    try:
        arrays.write(where, tree)
    except TimeoutError:
        raise
    except Exception as error:
        # Orbax and tensorstore raise what their drivers raise.
        raise StoreError(f"{where}: cannot be written: {' '.join(str(error).split())}") from error
    whole = PartManifest(
        step=part.step,
        shard=part.shard,
        shards=part.shards,
        versions=part.versions,
        item=item,
        time=time.time(),
        tensors=dict(entries),
        meta=part.meta,
    )
    bucket.write(name_of(part), whole.model_dump_json().encode())


def entries_of(part: Part) -> dict[str, TensorEntry]:
    """Shapes and checksums of what `part` holds."""
    return {
        name: TensorEntry(
            shape=own.theta.shape,
            layers=own.layers,
            theta=manifest.checksum(own.theta),
            momentum=manifest.checksum(own.momentum),
        )
        for name, own in part.tensors.items()
    }


def find(bucket: Bucket, step: int, shard: int, shards: int) -> PartManifest:
    """Raises `Damaged`: there is none, or it is none; `StoreError`: the bucket does not answer."""
    name = layout.part(step, shard, shards)
    return manifest.parse(PartManifest, bucket.read(name), bucket.address(name))


def read(bucket: Bucket, found: PartManifest) -> Part:
    """Reads a part back, with checksums; raises as `tensors`."""
    theta, momentum = tensors(bucket, found, "theta"), tensors(bucket, found, "momentum")
    own = {name: Slice(theta[name], momentum[name], entry.layers) for name, entry in found.tensors.items()}
    return Part(found.step, found.shard, found.shards, own, found.versions, found.meta)


def tensors(
    bucket: Bucket, found: PartManifest, kind: Kind, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Verified arrays of a part: those of `names`, or all.

    Raises:
        Damaged: they are not what was saved.
        StoreError: the bucket does not answer.
    """
    read: dict[str, np.ndarray] = {}
    for piece in _pieces(found, found.tensors if names is None else names):
        read |= _read(bucket, found, kind, piece)
    manifest.verify(found, kind, read)
    return read


def depths(shards: Sequence[PartManifest]) -> dict[str, int]:
    """Layers of each tensor that is cut by layer. Raises `Damaged` if the shards together lack one."""
    layers: dict[str, list[int]] = {}
    for part in shards:
        for name, entry in part.tensors.items():
            if entry.layers is not None:
                layers.setdefault(name, []).extend(entry.layers)
    for name, found in layers.items():
        if sorted(found) != list(range(len(found))):
            raise Damaged(f"step {shards[0].step}: {name}: layers {sorted(found)} are not all")
    return {name: len(found) for name, found in layers.items()}


def assemble(
    bucket: Bucket, shards: Sequence[PartManifest], kind: Kind, depths: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Arrays of these shards, put together by tensor; layers of other shards have arbitrary values.

    Raises as `tensors`.
    """
    whole: dict[str, np.ndarray] = {}
    for part in shards:
        for name, value in tensors(bucket, part, kind).items():
            own = part.tensors[name].layers
            if own is None:
                whole[name] = value
                continue
            if name not in whole:  # memory that nobody writes to is not taken
                whole[name] = np.empty((depths[name], *value.shape[1:]), value.dtype)
            whole[name][list(own)] = value
    return whole


def _pieces(found: PartManifest, names: Iterable[str]) -> Iterator[list[str]]:
    """Names of at most `PIECE` bytes together, or of one tensor."""
    piece: list[str] = []
    for name in names:
        if piece and _size(found, [*piece, name]) > PIECE:
            yield piece
            piece = []
        piece.append(name)
    if piece:
        yield piece


def _size(found: PartManifest, names: Iterable[str]) -> int:
    """Bytes of float32."""
    return sum(4 * int(np.prod(found.tensors[name].shape, dtype=np.int64)) for name in names)


def _read(bucket: Bucket, found: PartManifest, kind: Kind, names: list[str]) -> dict[str, np.ndarray]:
    where, attempt = bucket.address(found.item), 1
    while True:
        try:
            return arrays.read(where, kind, names, _size(found, names))
        except TimeoutError as error:
            raise StoreError(f"{where}: cannot be read: {error}") from error
        except Exception as error:
            # Orbax and tensorstore raise what their drivers raise, for a bucket that fails as for damage. So the
            # bucket is asked: where it does not answer, that is the error.
            find(bucket, found.step, found.shard, found.shards)
            if attempt == ATTEMPTS:
                raise Damaged(f"{where}: cannot be read: {_first_line(error)}") from error
        time.sleep(FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        attempt += 1


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
