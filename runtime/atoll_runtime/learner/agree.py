"""What all hosts of a unit know: element-wise minimum and maximum of a small vector over the hosts.

JAX runs the same programs in the same order on every host, so an arriving fragment may be applied, and a pull
answered, only between two steps and only where all hosts agree. A single host asks nobody.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.model.axes import everywhere, over_devices

Extremes = tuple[np.ndarray, np.ndarray]
"""Minimum and maximum, int32."""


class Agreement:
    """One small collective a call, made by every host at the same place of the program."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._hosts = len({device.process_index for device in mesh.devices.flat})
        self._local = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
        self._reduce = jax.jit(_extremes, out_shardings=everywhere(mesh))

    def extremes(self, values: np.ndarray) -> Extremes:
        """Minimum and maximum of int32 `values` over the hosts."""
        if self._hosts == 1:
            return values, values
        rows = np.tile(values.astype(np.int32), (self._local, 1))
        shape = (self._mesh.devices.size, len(values))
        everyone = jax.make_array_from_process_local_data(over_devices(self._mesh), rows, shape)
        low, high = self._reduce(everyone)
        return np.asarray(low), np.asarray(high)

    def from_first(self, values: np.ndarray) -> np.ndarray:
        """Host 0's int64 `values`, on every host."""
        words = values.astype(np.int64).view(np.int32)
        if jax.process_index() != 0:
            words = np.full_like(words, np.iinfo(np.int32).min)
        return self.extremes(words)[1].view(np.int64)


def _extremes(rows: Array) -> tuple[Array, Array]:
    return jnp.min(rows, axis=0), jnp.max(rows, axis=0)
