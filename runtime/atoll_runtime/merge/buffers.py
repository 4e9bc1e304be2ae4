"""Memory that merges write into, reused once nothing refers to it (numpy only).

A merge makes new arrays, because versions are immutable. Fresh pages would take as long as all its arithmetic, because
the operating system clears each page at its first access.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

PAGE, STAGGER = 4096, 704
"""Bytes. Arrays begin at different offsets in a page, because accesses to arrays with the same offset wait for each
other: an outer step over 64 MB took a third longer. Each begins a line of the cache."""


class Buffers:
    """Lends arrays. Their memory comes back when no view refers to it any more.

    Only one thread at a time may call `take`. Arrays may be freed in any thread.
    """

    def __init__(self, limit: int) -> None:
        """Keeps at most `limit` unused bytes."""
        self.limit = limit
        self._largest = 0
        self._made = 0
        self._unused: dict[int, list[NDArray[np.uint8]]] = {}
        """By size."""

    @property
    def unused(self) -> int:
        """Bytes."""
        return sum(size * len(raws) for size, raws in list(self._unused.items()))

    def take(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array of `size` elements with arbitrary contents."""
        room = self._largest = max(size, self._largest)
        while room // 2 >= max(
            size, 1
        ):  # fragments have nearly equal sizes: with sizes rounded up, the memory of one fits the others
            room //= 2
        needed = room * np.dtype(dtype).itemsize
        unused = self._unused.get(needed)
        raw = unused.pop() if unused else self._make(needed)
        return np.asarray(_Loan(raw, self)).view(dtype)[:size]

    def _make(self, size: int) -> NDArray[np.uint8]:
        self._made += 1
        raw = np.empty(size + PAGE, np.uint8)
        start = (self._made * STAGGER - raw.ctypes.data) % PAGE
        return raw[start : start + size]

    def give(self, raw: NDArray[np.uint8]) -> None:
        """Takes memory back, or frees it beyond the limit."""
        if self.unused + raw.size <= self.limit:
            self._unused.setdefault(raw.size, []).append(raw)


class _Loan:
    """The base that every view of a lent array refers to. It is deleted with the last view."""

    def __init__(self, raw: NDArray[np.uint8], home: Buffers) -> None:
        self._raw, self._home = raw, home
        self.__array_interface__ = raw.__array_interface__

    def __del__(self) -> None:
        self._home.give(self._raw)
