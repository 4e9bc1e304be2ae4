"""A shard's fragments as tensors, for the bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll_runtime.payloads import Slice
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
    return {name: _slice(found, layout.shapes[name]) for name, found in sorted(rows.items())}


def _slice(rows: Mapping[int | None, tuple[Array, Array]], shape: tuple[int, ...]) -> Slice:
    if None in rows:
        theta, momentum = rows[None]
        return Slice(theta.copy(), momentum.copy())
    layers = sorted(index for index in rows if index is not None)
    theta, momentum = (np.stack([rows[index][kind] for index in layers]) for kind in (0, 1))
    return Slice(theta, momentum, None if len(layers) == shape[0] else tuple(layers))
