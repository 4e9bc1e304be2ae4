"""Host 0 finds something out; then every host of the unit has it, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import msgspec
import numpy as np

from atoll_runtime.learner.agree import Agreement
from atoll_runtime.sync.fragments import Array

WORDS = 1 << 20
"""int32 of one collective: 4 MiB on each device. One size, so that it is compiled once."""
POLL = 0.2
"""Seconds between two looks at host 0; no collective waits for longer, however long it works."""
LEAST = np.iinfo(np.int32).min
"""What the others put in: host 0's word is never less."""

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def on_first(agreement: Agreement, work: Callable[[], T]) -> T | None:
    """What `work` returns, on host 0; None on the others, which wait without a long collective.

    Raises:
        Exception: whatever `work` raises, on host 0 alone: its end ends the others.
    """
    first = jax.process_index() == 0
    with ThreadPoolExecutor(1, "seed") as pool:
        future = pool.submit(work) if first else None
        while not agreement.extremes(np.array([future is None or future.done()], np.int32))[0][0]:
            time.sleep(POLL)
        return future.result() if future is not None else None


def facts(agreement: Agreement, found: S | None, kind: type[S]) -> S:
    """Host 0's `found` (None on the others), on every host."""
    data = b"" if found is None else msgspec.msgpack.encode(found)
    length = int(agreement.from_first(np.array([len(data)], np.int64))[0])
    padded = np.zeros(-(-length // 4), np.int32)
    padded.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return msgspec.msgpack.decode(_words(agreement, padded).tobytes()[:length], type=kind)


def tensors(
    agreement: Agreement, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Array] | None
) -> dict[str, Array]:
    """Host 0's float32 tensors of these shapes (None on the others), on every host."""
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
