"""Shares values among all hosts of a unit: the element-wise minimum and maximum of a small vector over the hosts, and
what host 0 has found, bit for bit.

JAX runs the same programs in the same order on every host. So an arriving fragment may be applied, and a pull
answered, only between two steps and only if all hosts agree. A single host needs no communication.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.model.axes import everywhere, over_devices
from atoll_runtime.protocol.fragments import Array as HostArray

Extremes = tuple[np.ndarray, np.ndarray]
"""Minimum and maximum, int32."""
WORDS = 1 << 20
"""int32 values of one collective: 4 MiB on each device. The size is fixed, so that the program is compiled once."""
POLL = 0.2
"""Seconds between two polls of host 0, so that no collective waits for long."""
LEAST = np.iinfo(np.int32).min
"""The other hosts' values if the maximum must be host 0's. Host 0's values are never less."""

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Agreement:
    """Small collectives. Every host must make the same calls at the same points of the program."""

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
            words = np.full_like(words, LEAST)
        return self.extremes(words)[1].view(np.int64)

    def found_by_first(self, work: Callable[[], tuple[S, T]], kind: type[S]) -> tuple[S, T | None]:
        """Runs `work` on host 0. Returns its facts, of this kind, on every host, and the rest on host 0 alone.

        Raises:
            Exception: whatever `work` raises, on host 0 alone. When host 0 ends, the other hosts end too.
        """
        with ThreadPoolExecutor(1, "seed") as pool:
            future = pool.submit(work) if jax.process_index() == 0 else None
            while not self.extremes(np.array([future is None or future.done()], np.int32))[0][0]:
                time.sleep(POLL)
            facts, rest = future.result() if future is not None else (None, None)
        data = b"" if facts is None else msgspec.msgpack.encode(facts)
        length = int(self.from_first(np.array([len(data)], np.int64))[0])
        padded = np.zeros(-(-length // 4), np.int32)
        padded.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return msgspec.msgpack.decode(self._words(padded).tobytes()[:length], type=kind), rest

    def tensors_of_first(
        self, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, HostArray] | None
    ) -> dict[str, HostArray]:
        """Returns host 0's float32 tensors of these shapes on every host. Other hosts pass None."""
        result = {}
        for name, shape in sorted(shapes.items()):
            whole = np.empty(shape, np.float32) if found is None else np.ascontiguousarray(found[name])
            result[name] = self._words(whole.reshape(-1).view(np.int32)).view(np.float32).reshape(shape)
        return result

    def _words(self, mine: np.ndarray) -> np.ndarray:
        """Host 0's words, on every host."""
        if self._hosts == 1:
            return mine
        first, result = jax.process_index() == 0, np.empty_like(mine)
        for start in range(0, mine.size, WORDS):
            part = result[start : start + WORDS]
            values = np.full(WORDS, LEAST, np.int32)
            if first:
                values[: part.size] = mine[start : start + WORDS]
            part[:] = self.extremes(values)[1][: part.size]
        return result


def _extremes(rows: Array) -> tuple[Array, Array]:
    return jnp.min(rows, axis=0), jnp.max(rows, axis=0)
