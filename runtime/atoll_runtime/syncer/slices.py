"""A shard's fragments as tensors, to and from the bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll_runtime.payloads import Region, Slice
from atoll_runtime.protocol.fragments import Array, Layout
from atoll_runtime.syncer.state import Version


def slices(layout: Layout, fragments: Sequence[Version]) -> dict[str, Slice]:
    """Θ and momentum of a shard by tensor name: whole tensors, or the layers that the shard owns. Copies."""
    rows: dict[str, dict[int | None, tuple[Array, Array]]] = {}
    for fragment, held in zip(layout.fragments, fragments, strict=True):
        for (piece, theta), (_, momentum) in zip(
            fragment.cut(held.theta), fragment.cut(held.momentum), strict=True
        ):
            rows.setdefault(piece.tensor, {})[piece.index] = theta, momentum
    return {name: _slice(found) for name, found in sorted(rows.items())}


def _slice(rows: Mapping[int | None, tuple[Array, Array]]) -> Slice:
    if None in rows:
        theta, momentum = rows[None]
        return Slice(theta.copy(), momentum.copy())
    layers = sorted(index for index in rows if index is not None)
    theta, momentum = (np.stack([rows[index][kind] for index in layers]) for kind in (0, 1))
    return Slice(theta, momentum, tuple(layers))


def owned(layout: Layout) -> dict[str, Region]:
    """What a shard reads of a checkpoint: the tensors of its pieces, or the layers of them."""
    layers: dict[str, list[int]] = {}
    for fragment in layout.fragments:
        for piece in fragment.pieces:
            own = layers.setdefault(piece.tensor, [])
            if piece.index is not None:
                own.append(piece.index)
    return {name: (tuple(sorted(own)),) if own else () for name, own in layers.items()}
