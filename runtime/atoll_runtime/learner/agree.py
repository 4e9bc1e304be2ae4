"""Shares values among all hosts of a unit: the element-wise minimum and maximum of a small vector over the hosts, and
what host 0 has found, bit for bit.

JAX runs the same programs in the same order on every host. So an arriving fragment may be applied, and a pull
answered, only between two steps and only if all hosts agree. A single host needs no communication.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
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
LEAST_WORDS, MOST_WORDS = 1 << 8, 1 << 20
"""int32 values of one collective: 1 KiB to 4 MiB on each device."""
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
        size = max(LEAST_WORDS, 1 << (len(values) - 1).bit_length())  # each size is a program to compile
        row = np.zeros(size, np.int32)
        row[: len(values)] = values
        shape = (self._mesh.devices.size, size)
        rows = np.tile(row, (self._local, 1))
        everyone = jax.make_array_from_process_local_data(over_devices(self._mesh), rows, shape)
        low, high = (np.asarray(each)[: len(values)] for each in self._reduce(everyone))
        return low, high

    def from_first(self, values: np.ndarray) -> np.ndarray:
        """Host 0's int64 `values`, on every host."""
        found = values.astype(np.int64)
        self._fill([found.view(np.int32)])
        return found

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
        self._fill([padded])
        return msgspec.msgpack.decode(padded.tobytes()[:length], type=kind), rest

    def tensors_of_first(
        self, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, HostArray] | None
    ) -> dict[str, HostArray]:
        """Returns host 0's float32 tensors of these shapes on every host. Other hosts pass None."""
        result = {
            name: np.empty(shape, np.float32) if found is None else np.asarray(found[name], order="C")
            for name, shape in sorted(shapes.items())
        }
        self._fill([tensor.reshape(-1).view(np.int32) for tensor in result.values()])
        return result

    def _fill(self, parts: Sequence[np.ndarray]) -> None:
        """Overwrites these words by those of host 0, on every host. Small parts share a collective."""
        if self._hosts == 1:
            return
        first = jax.process_index() == 0
        for together in _together(parts, MOST_WORDS):
            values = np.concatenate(together) if first else np.full(sum(map(len, together)), LEAST, np.int32)
            found = self.extremes(values)[1]
            if not first:
                for part, end in zip(together, accumulate(map(len, together)), strict=True):
                    part[:] = found[end - len(part) : end]


def _together(parts: Sequence[np.ndarray], most: int) -> Iterator[list[np.ndarray]]:
    """Views of the parts, in their order, in lists of `most` elements; the last list may be shorter."""
    held: list[np.ndarray] = []
    room = most
    for part in parts:
        while part.size:
            held.append(part[:room])
            part, room = part[room:], room - held[-1].size
            if not room:
                yield held
                held, room = [], most
    if held:
        yield held


def _extremes(rows: Array) -> tuple[Array, Array]:
    return jnp.min(rows, axis=0), jnp.max(rows, axis=0)
