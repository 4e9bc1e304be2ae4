"""How the model is cut into fragments: balanced, deterministic, the same on every host (numpy only)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class LayoutError(ValueError):
    """The model cannot be cut as asked; the message names the field."""


@dataclass(frozen=True)
class TensorInfo:
    """A parameter tensor by its flat name, such as `layers/attention/wq`."""

    name: str
    shape: tuple[int, ...]
    stacked: bool
    """Axis 0 is the layer axis. The tensor is cut by layer; otherwise fragments would not be balanced."""
    embedding: bool
    """Merged by the direct mean, not by RDA."""


@dataclass(frozen=True)
class Piece:
    """A tensor, one layer of a stacked one, or one band of a layer or an embedding. Norms are taken per piece."""

    tensor: str
    index: int | None
    """Index of the layer or band; None for a whole tensor. Bands of layers are counted layer by layer."""
    shape: tuple[int, ...]
    size: int
    embedding: bool
    axis: int | None = None
    """Axis along which an embedding's bands follow each other; None for others (a layer's shape lacks the axis)."""
    bands: int = 1
    """Bands of a layer, along its first axis."""

    @property
    def place(self) -> tuple[int | slice, ...]:
        """The NumPy index of the piece in its tensor."""
        if self.index is None:
            return ()
        if self.bands > 1:
            layer, band = divmod(self.index, self.bands)
            return layer, slice(band * self.shape[0], (band + 1) * self.shape[0])
        if self.axis is None:
            return (self.index,)
        start = self.index * self.shape[self.axis]
        return (*[slice(None)] * self.axis, slice(start, start + self.shape[self.axis]))


@dataclass(frozen=True)
class Fragment:
    """Pieces that are merged together, laid end to end in one flat vector."""

    id: int
    """Its place in `Layout.fragments`."""
    pieces: tuple[Piece, ...]
    size: int
    """Elements; 0 if a shard owns no piece of a fragment."""
    offsets: tuple[int, ...]
    """First element of each piece."""

    def cut(self, flat: Any) -> Iterator[tuple[Piece, Any]]:
        """Each piece with its values: views of a NumPy vector, parts of a JAX one."""
        for piece, start in zip(self.pieces, self.offsets, strict=True):
            yield piece, flat[start : start + piece.size].reshape(piece.shape)


@dataclass(frozen=True)
class Layout:
    """Every fragment of a model, or of one shard of it."""

    fragments: tuple[Fragment, ...]
    """Shard by shard: fragment p of shard s stands at s·P + p."""
    fingerprint: str
    """sha256 of the canonical layout. Both ends must have the same. For a whole model it does not depend on S."""
    shapes: Mapping[str, tuple[int, ...]]
    shards: int = 1

    @property
    def width(self) -> int:
        """P: fragments of one shard."""
        return len(self.fragments) // self.shards

    def shard(self, s: int) -> Layout:
        """The fragments of shard `s`: P of them, some of which may be empty."""
        if self.shards == 1:
            return self
        own = self.fragments[s * self.width : (s + 1) * self.width]
        cuts = tuple(replace(fragment, id=p) for p, fragment in enumerate(own))
        return Layout(cuts, fingerprint(cuts), self.shapes)

    def split(self, shards: int) -> Layout:
        """The same fragments, owned by another number of shards. Each piece goes to one shard, largest first."""
        owned = [0] * shards
        table: list[list[list[Piece]]] = []
        for p in range(self.width):
            content = [piece for own in self.fragments[p :: self.width] for piece in own.pieces]
            table.append(deal(content, shards, owned))
            owned = [
                load + sum(each.size for each in mine) for load, mine in zip(owned, table[p], strict=True)
            ]
        cuts = (lay(s * self.width + p, table[p][s]) for s in range(shards) for p in range(self.width))
        return Layout(tuple(cuts), self.fingerprint, self.shapes, shards)

    @property
    def size(self) -> int:
        """Elements of the whole model."""
        return sum(fragment.size for fragment in self.fragments)

    def flatten(self, tensors: Mapping[str, NDArray[Any]], p: int) -> Array:
        """Fragment `p` of `tensors` as one float32 vector."""
        fragment = self.fragments[p]
        flat = np.empty(fragment.size, np.float32)
        for piece, values in fragment.cut(flat):
            values[...] = tensors[piece.tensor][piece.place]
        return flat

    def unflatten(self, p: int, flat: NDArray[Any], into: dict[str, Array], first: int = 0) -> None:
        """Writes `flat`, the elements of fragment `p` from `first` on, into `into`. Leaves out what goes past the
        fragment's end. Tensors that are missing there are created (float32, zero)."""
        fragment = self.fragments[p]
        for piece, offset in zip(fragment.pieces, fragment.offsets, strict=True):
            values = flat[max(offset - first, 0) : max(offset - first + piece.size, 0)]
            if not values.size:
                continue
            target = into.get(piece.tensor)
            if target is None:
                target = into[piece.tensor] = np.zeros(self.shapes[piece.tensor], np.float32)
            if values.size == piece.size:
                target[piece.place] = values.reshape(piece.shape)
                continue
            place, start = target[piece.place], max(first - offset, 0)
            # Much faster than a flat iterator, where the piece is contiguous.
            elements = place.reshape(-1) if place.flags.c_contiguous else place.flat
            elements[start : start + values.size] = values


def build_layout(tensors: Sequence[TensorInfo], fragments: int, shards: int = 1) -> Layout:
    """Deals pieces to fragments, each time the largest to the smallest fragment (LPT). The largest fragment has at
    most 4/3 of the optimal size.

    Then each fragment's pieces are dealt to the shards in the same way. A piece goes to one shard, so that norms stay
    local. Which pieces make a fragment does not depend on the number of shards.

    Raises:
        LayoutError: fewer pieces than fragments or shards, or a tensor name that occurs twice.
    """
    shapes = {tensor.name: tuple(tensor.shape) for tensor in tensors}
    if len(shapes) != len(tensors):
        raise LayoutError("model: a tensor name occurs twice")
    pieces = cut(tensors)
    for field, count in (("outer.fragments", fragments), ("syncer.shards", shards)):
        if not 1 <= count <= len(pieces):
            raise LayoutError(
                f"{field}: {count} does not fit this model, which has {len(pieces)} pieces "
                f"(tensors, layers of stacked ones, bands): give 1 to {len(pieces)}"
            )
    bins = deal(pieces, fragments)
    cuts = tuple(lay(p, content) for p, content in enumerate(bins))
    return Layout(cuts, fingerprint(cuts), shapes).split(shards)


def translate(versions: Sequence[int], old: Layout, new: Layout, step: int) -> tuple[int, ...]:
    """Versions of a cut at `step` for another number of shards. A fragment of pieces with different versions gets
    `step`."""
    of_piece = {
        order(piece): version
        for fragment, version in zip(old.fragments, versions, strict=True)
        for piece in fragment.pieces
    }
    result = []
    for fragment in new.fragments:
        found = {of_piece[order(piece)] for piece in fragment.pieces} or {0}
        result.append(found.pop() if len(found) == 1 else step)
    return tuple(result)


def deal(pieces: Sequence[Piece], count: int, ties: Sequence[int] = ()) -> list[list[Piece]]:
    """Deals pieces, largest first, to the least loaded bin; of equal bins to the least in `ties`, then to the first."""
    loads, bins = [0] * count, [list[Piece]() for _ in range(count)]
    for piece in sorted(pieces, key=lambda piece: (-piece.size, order(piece))):
        at = min(range(count), key=lambda b: (loads[b], ties[b] if ties else 0, b))
        bins[at].append(piece)
        loads[at] += piece.size
    return bins


def cut(tensors: Sequence[TensorInfo]) -> list[Piece]:
    """Cuts stacked tensors by layer, very large layers into bands, and embeddings into bands that fill the gaps between
    layers. Others stay whole."""
    embeddings = [tensor for tensor in tensors if tensor.embedding and not tensor.stacked]
    mean = sum(math.prod(tensor.shape) for tensor in tensors) // EVEN_FRAGMENTS
    pieces = [piece for tensor in tensors if tensor not in embeddings for piece in _layers(tensor, mean)]
    most = max([LEAST_BAND, *(piece.size // LAYER_BANDS for piece in pieces)])
    return pieces + [piece for tensor in embeddings for piece in _bands(tensor, most)]


def _layers(tensor: TensorInfo, mean: int) -> list[Piece]:
    """A layer is cut if it is larger than 4/3 of `mean`, into bands of `mean` elements at most where that needs
    few bands. Each band's norm is its own, so more of them than needed would change the merge for nothing."""
    shape = tuple(tensor.shape)
    if not tensor.stacked:
        return [Piece(tensor.name, None, shape, math.prod(shape), tensor.embedding)]
    rest, size = shape[1:], math.prod(shape[1:])
    bands = 1
    if rest and size > max(LEAST_LAYER, 4 * mean // 3):
        bands = _count(rest[0], size, mean, min(MOST_BANDS, EXCESS_BANDS * -(-size // max(1, mean))))
    band = (rest[0] // bands, *rest[1:]) if rest else ()
    count = shape[0] * bands
    return [Piece(tensor.name, i, band, size // bands, tensor.embedding, bands=bands) for i in range(count)]


def _bands(tensor: TensorInfo, most: int) -> list[Piece]:
    """Equal bands of at most `most` elements, as far as the vocabulary (the longest axis) can be divided.

    The bands do not change the result, because embeddings are merged by the direct mean.
    """
    shape, size = tuple(tensor.shape), math.prod(tensor.shape)
    axis = shape.index(max(shape))
    count = _count(shape[axis], size, most, MOST_BANDS)
    if count == 1:
        return [Piece(tensor.name, None, shape, size, True)]
    band = (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
    return [Piece(tensor.name, i, band, size // count, True, axis) for i in range(count)]


def _count(length: int, size: int, most: int, limit: int) -> int:
    """The least number of equal bands along an axis of this length that have at most `most` of `size` elements each; if
    it is greater than `limit`, the greatest number up to that."""
    counts = [count for count in range(1, limit + 1) if length % count == 0]
    return next((count for count in counts if size <= count * most), counts[-1])


def order(piece: Piece) -> tuple[str, int]:
    """Sort key: name, then layer or band."""
    return piece.tensor, -1 if piece.index is None else piece.index


def lay(p: int, content: Sequence[Piece]) -> Fragment:
    """Lays pieces end to end, in the order of their names."""
    pieces = tuple(sorted(content, key=order))
    offsets, size = [], 0
    for piece in pieces:
        offsets.append(size)
        size += piece.size
    return Fragment(p, pieces, size, tuple(offsets))


def fingerprint(fragments: Sequence[Fragment]) -> str:
    """sha256 over the canonical JSON of all pieces in their places."""
    canonical = [
        [
            [piece.tensor, piece.index, list(piece.shape), piece.axis, piece.embedding]
            + [piece.bands] * (piece.bands > 1)
            for piece in fragment.pieces
        ]
        for fragment in fragments
    ]
    return hashlib.sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()


EVEN_FRAGMENTS = 24 * 8
"""Fragments of all shards that layers are small enough for: the default P in eight shards. This number does not depend
on the run's, so that the number of shards may change and fragments stay comparable."""
LEAST_LAYER = 2_000_000
"""Elements that a layer may always have. Shards of a model with smaller ones are small."""
LAYER_BANDS = 4
"""A band of an embedding has at most the elements of the largest other piece divided by this."""
LEAST_BAND = 1 << 14
"""Elements that a band may always have. An embedding with no more is not cut."""
MOST_BANDS = 512
"""Most bands of an embedding or a layer. Their number does not depend on the number of shards, which may change."""
EXCESS_BANDS = 4
"""Most bands of a layer, as a multiple of those that would be needed if its axis had every divisor."""
BLOCK = 64
"""Elements that share a scale in int4 and int8. With 64, rounding normal values to the nearest of 15 steps changes
their vector by 10 % of its length; with 256, by 12 %."""
MOST_PADDING = BLOCK << 16
"""Most elements of padding in a fragment: a block for each device of a unit."""


def part_bounds(size: int, parts: int, block: int = BLOCK) -> list[tuple[int, int]]:
    """Equal ranges [start, stop) of `size` elements for `parts` devices, in whole blocks. The last stop is the padded
    size."""
    if parts < 1:
        raise LayoutError(f"parts: {parts} must be at least 1")
    share = -(-size // (parts * block)) * block
    return [(i * share, (i + 1) * share) for i in range(parts)]
