"""Reads batches ahead in background threads. An error is raised when its batch is taken."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

AHEAD = 4
"""Batches read ahead; at least one for each thread."""
POLL = 0.2
"""Seconds between two checks whether it was closed."""


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
        rows: this host's rows [start, stop) of a batch; rows from `size` on repeat the first ones.
        example: tokens int32 [T+1] at a cursor; called from the background threads alone.
        readers: threads. They read whole batches in turns, so `readers` examples are read at the same time.
    """

    def __init__(
        self,
        example: Callable[[int], np.ndarray],
        cursor: int,
        size: int,
        rows: tuple[int, int],
        readers: int = 1,
    ) -> None:
        self._example = example
        self._size = size
        self._rows = rows
        self._ready: list[queue.Queue[HostBatch | Exception]] = [
            queue.Queue(-(-AHEAD // readers)) for _ in range(readers)
        ]
        self._turn = 0
        self._closed = threading.Event()
        # Daemons: a hanging read must not keep the process alive.
        self._threads = [
            threading.Thread(target=self._run, args=(number, cursor), name="prefetch", daemon=True)
            for number in range(readers)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, timeout: float) -> HostBatch:
        """The next batch. Raises the reader's error, or `TimeoutError` after `timeout` seconds."""
        try:
            found = self._ready[self._turn].get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no batch of training data within {timeout:g} s") from None
        if isinstance(found, Exception):
            raise found
        self._turn = (self._turn + 1) % len(self._ready)
        return found

    def close(self, timeout: float = 5.0) -> None:
        """Ends the threads; waits at most `timeout` seconds for all of them."""
        self._closed.set()
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, number: int, cursor: int) -> None:
        cursor += number * self._size
        while not self._closed.is_set():
            try:
                found: HostBatch | Exception = self._batch(cursor)
            except Exception as error:
                found = error
            if not self._put(number, found) or isinstance(found, Exception):
                return
            cursor += len(self._threads) * self._size

    def _batch(self, cursor: int) -> HostBatch:
        start, stop = self._rows
        tokens = np.stack([self._example(cursor + row % self._size) for row in range(start, stop)])
        return HostBatch(cursor=cursor + self._size, tokens=tokens)

    def _put(self, number: int, item: HostBatch | Exception) -> bool:
        while not self._closed.is_set():
            try:
                self._ready[number].put(item, timeout=POLL)
            except queue.Full:
                continue
            return True
        return False
