"""Reads batches ahead in background threads. An error is raised when its batch is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

AHEAD = 4
"""Batches read ahead; more if these have fewer rows than there are threads."""


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
        readers: number of threads, which share the rows of a batch. Each reads one row at a time.
    """

    def __init__(
        self,
        example: Callable[[int], np.ndarray],
        cursor: int,
        size: int,
        rows: tuple[int, int],
        readers: int = 1,
    ) -> None:
        self._example, self._size = example, size
        self._cursor = cursor
        """Cursor of the next batch to read."""
        self._pool = ThreadPoolExecutor(readers, "prefetch")
        count = rows[1] - rows[0]
        shares = np.array_split(np.arange(*rows) % size, min(readers, count))
        self._shares: list[list[int]] = [share.tolist() for share in shares]
        """Rows of a batch by task. With a task for each row, `take` would last 20 µs for each of them."""
        self._ahead: deque[tuple[int, list[Future[np.ndarray]]]] = deque()
        """The cursor after each batch, and the tasks that read its rows."""
        for _ in range(max(AHEAD, -(-readers // count))):
            self._read_ahead()

    def take(self, timeout: float) -> HostBatch:
        """The next batch. Raises the reader's error, or `TimeoutError` after `timeout` seconds."""
        cursor, tasks = self._ahead[0]
        done, late = wait(tasks, timeout, FIRST_EXCEPTION)
        for task in done:
            task.result()  # raises the reader's error
        if late:
            raise TimeoutError(f"no batch of training data within {timeout:g} s")
        self._ahead.popleft()
        self._read_ahead()
        return HostBatch(cursor, np.concatenate([task.result() for task in tasks]))

    def close(self, timeout: float = 5.0) -> None:
        """Ends the threads. Waits at most `timeout` seconds for the rows that they are reading."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        # `wait` does not return for a future that was cancelled before a thread took it.
        wait([task for _, tasks in self._ahead for task in tasks if not task.cancelled()], timeout)

    def _read_ahead(self) -> None:
        tasks = [self._pool.submit(self._read, self._cursor, rows) for rows in self._shares]
        self._cursor += self._size
        self._ahead.append((self._cursor, tasks))

    def _read(self, cursor: int, rows: Sequence[int]) -> np.ndarray:
        return np.stack([self._example(cursor + row) for row in rows])
