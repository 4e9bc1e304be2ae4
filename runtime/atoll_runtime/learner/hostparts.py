"""A host's own part of an array over the mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax import Array


def host_part(flat: Array) -> np.ndarray:
    """This host's contiguous part of a flat array over the mesh, read-only; waits for the copy."""
    shards = sorted(flat.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    parts = [np.asarray(shard.data) for shard in shards]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
