"""One shard's part of a global cut: its arrays, and the manifest that is written after them."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll_runtime.checkpoint import arrays, layout, manifest
from atoll_runtime.checkpoint.arrays import Chunked, Request
from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.checkpoint.manifest import PartManifest, TensorEntry
from atoll_runtime.payloads import Part, Region, Regions, Slice

FACTORS = (2, 2, 2, 2, 2, 2, 3, 3, 5, 7, 2, 2, 2, 2)
"""A layer or band is cut by each of these, in this order, if its length and `LEAST_BLOCK` allow it. So units of 64 or
128 hosts, and of 48 or 80, read only their own blocks."""
LEAST_BLOCK = 128 << 10
"""Minimum bytes of a block. Smaller blocks would take more time to read than they save, and each adds some 40 bytes of
indices and checksums, which every host reads."""
READERS = 8
"""Manifests that are read at the same time."""

Kind = Literal["theta", "momentum"]
Tensors = dict[str, np.ndarray]


def name_of(part: Part) -> str:
    """Path of the part's manifest, relative to the run's URI."""
    return layout.part(part.step, part.shard, part.shards)


@dataclass(frozen=True, slots=True)
class _Selection:
    """Blocks of one tensor of a part: some of its rows, which are layers or bands, and parts [start, stop) of each."""

    part: PartManifest
    name: str
    rows: Sequence[int]
    start: int
    stop: int

    @property
    def entry(self) -> TensorEntry:
        return self.part.tensors[self.name]

    @property
    def index(self) -> arrays.Index:
        """Index of these blocks in the stored array."""
        rows = () if self.entry.layers is None else (list(self.rows),)
        between = (slice(None),) * (self.entry.axis - len(rows))
        return (*rows, *between, slice(self.start, self.stop))

    @property
    def size(self) -> int:
        """Bytes of these blocks, of one kind."""
        whole = 4 * math.prod(self.entry.shape) * (self.stop - self.start) // self.entry.parts
        return whole if self.entry.layers is None else whole * len(self.rows) // self.entry.shape[0]

    def verify(self, kind: Kind, blocks: np.ndarray) -> None:
        """Raises `Damaged` if these are not the bytes that were saved."""
        saved = getattr(self.entry, kind)
        places = range(self.start, self.stop)
        wanted = [saved[row * self.entry.parts + at] for row in self.rows for at in places]
        found = self.entry.checksums(blocks) if blocks.nbytes == self.size else ()
        if len(found) != len(wanted):
            raise Damaged(f"{kind} {self.name}: shape {blocks.shape}, the manifest says {self.entry.shape}")
        for one, other in zip(found, wanted, strict=True):
            if one != other:
                raise Damaged(f"{kind} {self.name}: checksum {one:08x} where the manifest says {other:08x}")


def write(bucket: Bucket, part: Part, entries: Mapping[str, TensorEntry]) -> None:
    """Writes the arrays, then the manifest. Raises `StoreError` if they cannot be written."""
    tree = {
        kind: {
            name: Chunked(getattr(own, kind).reshape(entries[name].blocked), entries[name].axes)
            for name, own in part.tensors.items()
        }
        for kind in ("theta", "momentum")
    }
    item = layout.item(part.step, part.shard, part.shards)
    arrays.write(bucket, item, tree)
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


def entries_of(part: Part, along: Mapping[str, int]) -> dict[str, TensorEntry]:
    """Shapes, blocks and checksums of what `part` holds. `along`: the axis along which hosts split each tensor."""
    return {name: _entry(own, along.get(name)) for name, own in part.tensors.items()}


def _entry(own: Slice, axis: int | None) -> TensorEntry:
    shape, stacked = own.theta.shape, own.layers is not None
    if axis is None:
        axis = min(int(stacked), len(shape))
    elif own.axis is not None:
        axis += 1
    # A tensor that is cut into bands along an axis is not cut along it again.
    length = shape[axis] if axis < len(shape) and own.axis != axis - 1 else 1
    layer = 4 * math.prod(shape[stacked:])
    parts = 1
    for factor in FACTORS:
        if length % (parts * factor) == 0 and layer >= parts * factor * LEAST_BLOCK:
            parts *= factor
    entry = TensorEntry(
        shape=shape, layers=own.layers, band=own.axis, bands=own.bands, axis=axis, parts=parts
    )
    found = {
        kind: entry.checksums(getattr(own, kind).reshape(entry.blocked)) for kind in ("theta", "momentum")
    }
    return entry.model_copy(update=found)


def find(bucket: Bucket, step: int, shard: int, shards: int) -> PartManifest:
    """Reads a part's manifest; raises as `manifest.read`."""
    return manifest.read(PartManifest, bucket, layout.part(step, shard, shards))


def find_all(bucket: Bucket, step: int, shards: int) -> list[PartManifest]:
    """Reads the manifests of all shards' parts; raises as `find`."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda shard: find(bucket, step, shard, shards), range(shards)))


def read(bucket: Bucket, found: PartManifest) -> Part:
    """Reads a part back, with checksums; raises as `tensors`."""
    held: dict[Kind, Tensors] = {"theta": {}, "momentum": {}}
    for kind, each, blocks in _read(bucket, _select([found], None), ("theta", "momentum")):
        held[kind][each.name] = blocks.reshape(each.entry.shape)
    own = {
        name: Slice(held["theta"][name], held["momentum"][name], entry.layers, entry.band, entry.bands)
        for name, entry in found.tensors.items()
    }
    return Part(found.step, found.shard, found.shards, own, found.versions, found.meta)


def tensors(
    bucket: Bucket, shards: Sequence[PartManifest], kinds: Sequence[Kind], regions: Regions | None = None
) -> dict[Kind, Tensors]:
    """Verified arrays of these shards, joined into whole tensors. Values that are not wanted are arbitrary.

    Args:
        regions: what is wanted; None: all.

    Raises:
        Damaged: they are not what was saved, or the shards together lack a layer or band.
        StoreError: the bucket does not answer.
    """
    depth = depths(shards)
    result: dict[Kind, Tensors] = {kind: {} for kind in kinds}
    for kind, each, blocks in _read(bucket, _select(shards, regions), kinds):
        entry, whole, count = each.entry, result[kind], depth.get(each.name, 0)
        in_order = entry.layers in (None, tuple(range(count))) and not entry.band
        if in_order and blocks.shape == entry.blocked:
            whole[each.name] = blocks.reshape(entry.whole(count))
            continue
        if each.name not in whole:  # unwritten parts of it take no memory
            whole[each.name] = np.empty(entry.whole(count), np.float32)
        index = each.index
        if entry.layers is not None:
            index = ([entry.layers[row] for row in each.rows], *index[1:])
        entry.stacked(whole[each.name])[index] = blocks
    return result


def depths(shards: Sequence[PartManifest]) -> dict[str, int]:
    """Number of layers or bands of each tensor that has any. Raises `Damaged` if the shards together lack one."""
    layers: dict[str, list[int]] = {}
    for part in shards:
        for name, entry in part.tensors.items():
            if entry.layers is not None:
                layers.setdefault(name, []).extend(entry.layers)
    for name, found in layers.items():
        if sorted(found) != list(range(len(found))):
            raise Damaged(f"step {shards[0].step}: {name}: layers or bands {sorted(found)} are not all")
    return {name: len(found) for name, found in layers.items()}


def _select(shards: Iterable[PartManifest], regions: Regions | None) -> Iterator[_Selection]:
    """The blocks that hold the wanted regions."""
    for part in shards:
        for name, entry in part.tensors.items():
            if regions is not None and name not in regions:
                continue
            for numbers, region in _wanted(entry, () if regions is None else regions[name]):
                layers = entry.layers or range(1)
                rows = [row for row, number in enumerate(layers) if numbers is None or number in numbers]
                start, stop = 0, entry.parts
                axis = entry.axis if entry.band is None else entry.axis - 1
                if entry.parts > 1 and len(region) > axis and (along := region[axis]):
                    block = entry.shape[entry.axis] // entry.parts
                    start, stop = along[0] // block, along[-1] // block + 1
                if rows:
                    yield _Selection(part, name, rows, start, stop)


def _wanted(
    entry: TensorEntry, region: Region | frozenset[int]
) -> Iterator[tuple[Collection[int] | None, Region]]:
    """Numbers of the layers or bands that hold the wanted region (None: of all), with the region in each of them."""
    axis = entry.band or 0
    if isinstance(region, frozenset):
        yield region, ()
    elif entry.layers is None or len(region) <= axis:
        yield None, region
    elif entry.bands == 1:
        length = 1 if entry.band is None else entry.shape[1 + axis]
        yield {at // length for at in region[axis]}, region
    else:
        length = entry.shape[1]
        whole = region[1] if len(region) > 1 else range(entry.bands * length)
        for band in range(entry.bands):
            own = range(max(whole[0] - band * length, 0), min(whole[-1] + 1 - band * length, length))
            if own:
                yield {at * entry.bands + band for at in region[0]}, (region[0], own, *region[2:])


def _read(
    bucket: Bucket, selections: Iterable[_Selection], kinds: Sequence[Kind]
) -> Iterator[tuple[Kind, _Selection, np.ndarray]]:
    """Each selection's blocks, verified."""
    chosen = [(kind, each) for each in selections for kind in kinds]
    requests = [
        Request(bucket.address(each.part.item), kind, each.name, each.index, each.size)
        for kind, each in chosen
    ]

    def again() -> PartManifest:
        part = chosen[0][1].part
        return find(bucket, part.step, part.shard, part.shards)

    for (kind, each), blocks in zip(chosen, arrays.read(requests, again), strict=True):
        each.verify(kind, blocks)
        yield kind, each, blocks
