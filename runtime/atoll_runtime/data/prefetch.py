"""A background thread that reads a few batches ahead; its error is raised where the batch is taken."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

AHEAD = 4
"""Batches read ahead."""
POLL = 0.2
"""Seconds between two looks at whether the loop has gone."""


@dataclass(frozen=True, slots=True)
class HostBatch:
    """One host's rows of a batch."""

    cursor: int
    """The stream's cursor after this batch."""
    tokens: np.ndarray
    """int32 [rows, T+1]"""


class Prefetch:
    """Batches from `cursor` on, in order, `size` sequences each.

    Args:
        rows: this host's rows [start, stop) of a batch; from `size` on they fill up, with the first ones.
        example: tokens int32 [T+1] at a cursor; called from the background thread alone.
    """

    def __init__(
        self, example: Callable[[int], np.ndarray], cursor: int, size: int, rows: tuple[int, int]
    ) -> None:
        self._example = example
        self._size = size
        self._rows = rows
        self._ready: queue.Queue[HostBatch | Exception] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(cursor,), name="prefetch", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> HostBatch:
        """The next batch; raises what the reader raised, or `TimeoutError` after `timeout` seconds."""
        try:
            found = self._ready.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no batch of training data within {timeout:g} s") from None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self, timeout: float = 5.0) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join(timeout)

    def _run(self, cursor: int) -> None:
        while not self._closed.is_set():
            try:
                found: HostBatch | Exception = self._batch(cursor)
            except Exception as error:
                found = error
            if not self._put(found) or isinstance(found, Exception):
                return
            cursor += self._size

    def _batch(self, cursor: int) -> HostBatch:
        start, stop = self._rows
        tokens = np.stack([self._example(cursor + row % self._size) for row in range(start, stop)])
        return HostBatch(cursor=cursor + self._size, tokens=tokens)

    def _put(self, item: HostBatch | Exception) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=POLL)
            except queue.Full:
                continue
            return True
        return False
