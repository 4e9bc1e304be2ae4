"""Reads batches ahead in background threads. An error is raised when its batch is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

AHEAD = 4
"""Batches read ahead. If there are more threads than that, it is one for each thread."""


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
        rows: this host's rows [start, stop) of a batch. Rows from `size` on repeat the first ones.
        example: returns tokens int32 [T+1] at a cursor. Called only from the background threads.
        readers: number of threads. Each reads a whole batch, so `readers` examples are read at the same time.
    """

    def __init__(
        self,
        example: Callable[[int], np.ndarray],
        cursor: int,
        size: int,
        rows: tuple[int, int],
        readers: int = 1,
    ) -> None:
        self._example, self._size, self._rows = example, size, rows
        self._cursor = cursor
        """Cursor of the next batch to read."""
        self._pool = ThreadPoolExecutor(readers, "prefetch")
        self._ready: deque[Future[HostBatch]] = deque()
        for _ in range(max(AHEAD, readers)):
            self._read_ahead()

    def take(self, timeout: float) -> HostBatch:
        """The next batch. Raises the reader's error, or `TimeoutError` after `timeout` seconds."""
        try:
            found = self._ready[0].result(timeout)
        except TimeoutError:
            raise TimeoutError(f"no batch of training data within {timeout:g} s") from None
        self._ready.popleft()
        self._read_ahead()
        return found

    def close(self, timeout: float = 5.0) -> None:
        """Ends the threads. Waits at most `timeout` seconds for the batches that they are reading."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        # `wait` does not return for a future that was cancelled before a thread took it.
        wait([each for each in self._ready if not each.cancelled()], timeout)

    def _read_ahead(self) -> None:
        self._ready.append(self._pool.submit(self._batch, self._cursor))
        self._cursor += self._size

    def _batch(self, cursor: int) -> HostBatch:
        start, stop = self._rows
        tokens = np.stack([self._example(cursor + row % self._size) for row in range(start, stop)])
        return HostBatch(cursor=cursor + self._size, tokens=tokens)
