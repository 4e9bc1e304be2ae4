"""Shares values among all hosts of a unit: the element-wise minimum and maximum of a small vector over the hosts, and
what host 0 has found, bit for bit.

JAX runs the same programs in the same order on every host. So an arriving fragment may be applied, and a pull
answered, only between two steps and only if all hosts agree. A single host needs no communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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
"""Longest wait of one collective for other hosts' work, in seconds."""

T = TypeVar("T")
Facts = TypeVar("Facts")


class Agreement:
    """Small collectives. Every host must make the same calls at the same points of the program."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._hosts = len({device.process_index for device in mesh.devices.flat})
        self._local = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
        self._reduce = jax.jit(_extremes, out_shardings=everywhere(mesh))
        self.place = jax.process_index(), self._hosts
        """This host's number, and the number of hosts."""

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

    def together(self, work: Callable[[], T]) -> T:
        """Runs `work` on every host, and returns this host's result when it has ended on all. Raises what it raises,
        on this host alone."""
        with ThreadPoolExecutor(1, "seed") as pool:
            future = pool.submit(work)
            while True:
                wait([future], POLL)
                if self.extremes(np.array([future.done()], np.int32))[0][0]:
                    return future.result()

    def found_by_first(
        self, work: Callable[[], tuple[Facts, T]], kind: type[Facts]
    ) -> tuple[Facts, T | None]:
        """Runs `work` on host 0. Returns its facts, which msgspec can encode, on every host, and the rest on host 0
        alone.

        Raises:
            Exception: whatever `work` raises, on host 0 alone. When host 0 ends, the other hosts end too.
        """
        facts, rest = self.together(work if jax.process_index() == 0 else lambda: (None, None))
        data = b"" if facts is None else msgspec.msgpack.encode(facts)
        length = int(self.extremes(np.array([len(data)], np.int32))[1][0])
        padded = np.zeros(-(-length // 4), np.int32)
        padded.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        self._join([padded])
        return msgspec.msgpack.decode(padded.tobytes()[:length], type=kind), rest

    def tensors(
        self, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, HostArray]
    ) -> dict[str, HostArray]:
        """Float32 tensors of these shapes, whole on every host. Each element is in `own` on one host; on the others it
        is 0, or its tensor is missing. Overwrites `own`."""
        result = {
            name: np.asarray(own[name], order="C") if name in own else np.zeros(shape, np.float32)
            for name, shape in sorted(shapes.items())
        }
        self._join([tensor.reshape(-1).view(np.int32) for tensor in result.values()])
        return result

    def _join(self, parts: Sequence[np.ndarray]) -> None:
        """Overwrites these words, each of which is 0 on all hosts but one, by what that one has. Small parts share a
        collective."""
        if self._hosts == 1:
            return
        for together in _together(parts, MOST_WORDS):
            low, high = self.extremes(np.concatenate(together))
            for part, end in zip(together, accumulate(map(len, together)), strict=True):
                part[:] = low[end - len(part) : end] + high[end - len(part) : end]  # one of them is 0


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
