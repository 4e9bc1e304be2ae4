"""A shard's fragments as tensors, to and from the bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from atoll_runtime.payloads import Region, Slice
from atoll_runtime.protocol.fragments import Array, Layout, Piece, order
from atoll_runtime.syncer.state import Version


def slices(layout: Layout, fragments: Sequence[Version]) -> dict[str, Slice]:
    """Returns copies of a shard's Θ and momentum by tensor name: its own tensors, layers and bands."""
    held: dict[str, dict[Piece, tuple[Array, Array]]] = {}
    for fragment, version in zip(layout.fragments, fragments, strict=True):
        for (piece, theta), (_, momentum) in zip(
            fragment.cut(version.theta), fragment.cut(version.momentum), strict=True
        ):
            held.setdefault(piece.tensor, {})[piece] = theta, momentum
    return {name: _slice(found) for name, found in sorted(held.items())}


def _slice(held: Mapping[Piece, tuple[Array, Array]]) -> Slice:
    pieces = sorted(held, key=order)
    theta, momentum = (np.stack([held[piece][kind] for piece in pieces]) for kind in (0, 1))
    layers = tuple(piece.index for piece in pieces if piece.index is not None)
    return Slice(theta, momentum, layers, pieces[0].axis) if layers else Slice(theta[0], momentum[0])


def owned(layout: Layout) -> dict[str, Region]:
    """Returns what a shard reads of a checkpoint: by tensor of its pieces, all of it or its own layers or bands."""
    pieces = sorted((piece for fragment in layout.fragments for piece in fragment.pieces), key=order)
    return {
        name: _region(list(own), layout.shapes[name])
        for name, own in groupby(pieces, key=lambda piece: piece.tensor)
    }


def _region(pieces: Sequence[Piece], shape: tuple[int, ...]) -> Region:
    """Returns the region of these pieces in their tensor of this shape."""
    axis = pieces[0].axis or 0
    wanted: list[int] = []
    for piece in pieces:
        for along in piece.place[axis:]:
            wanted += [along] if isinstance(along, int) else range(shape[axis])[along]
    return (*map(range, shape[:axis]), wanted) if wanted else ()
