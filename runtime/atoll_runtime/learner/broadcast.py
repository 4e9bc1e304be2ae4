"""Broadcasts what host 0 found to every host of the unit, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import msgspec
import numpy as np

from atoll_runtime.learner.agree import Agreement
from atoll_runtime.protocol.fragments import Array

WORDS = 1 << 20
"""int32 values of one collective: 4 MiB on each device. The size is fixed, so that it is compiled once."""
POLL = 0.2
"""Seconds between two polls of host 0, so that no collective waits for long."""
LEAST = np.iinfo(np.int32).min
"""The other hosts' values; host 0's are never less."""

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def from_first(agreement: Agreement, work: Callable[[], tuple[S, T]], kind: type[S]) -> tuple[S, T | None]:
    """Runs `work` on host 0. Returns its facts, of this kind, on every host, and the rest on host 0 alone.

    Raises:
        Exception: whatever `work` raises, on host 0 alone, whose end ends the other hosts.
    """
    with ThreadPoolExecutor(1, "seed") as pool:
        future = pool.submit(work) if jax.process_index() == 0 else None
        while not agreement.extremes(np.array([future is None or future.done()], np.int32))[0][0]:
            time.sleep(POLL)
        facts, rest = future.result() if future is not None else (None, None)
    data = b"" if facts is None else msgspec.msgpack.encode(facts)
    length = int(agreement.from_first(np.array([len(data)], np.int64))[0])
    padded = np.zeros(-(-length // 4), np.int32)
    padded.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return msgspec.msgpack.decode(_words(agreement, padded).tobytes()[:length], type=kind), rest


def tensors(
    agreement: Agreement, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Array] | None
) -> dict[str, Array]:
    """Returns host 0's float32 tensors of these shapes on every host. Other hosts pass None."""
    result = {}
    for name, shape in sorted(shapes.items()):
        whole = np.empty(shape, np.float32) if found is None else np.ascontiguousarray(found[name])
        result[name] = _words(agreement, whole.reshape(-1).view(np.int32)).view(np.float32).reshape(shape)
    return result


def _words(agreement: Agreement, mine: np.ndarray) -> np.ndarray:
    if jax.process_count() == 1:
        return mine
    first, result = jax.process_index() == 0, np.empty_like(mine)
    for start in range(0, mine.size, WORDS):
        part = result[start : start + WORDS]
        values = np.full(WORDS, LEAST, np.int32)
        if first:
            values[: part.size] = mine[start : start + WORDS]
        part[:] = agreement.extremes(values)[1][: part.size]
    return result
