"""Memory that merges write into, used again once nothing refers to it (numpy only).

A merge makes new arrays, as versions are immutable. Fresh pages would cost it as much as all its arithmetic: the
operating system clears each of them at its first touch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNED = 256
"""Bytes: lines of the cache that a kernel writes at a time."""


class Buffers:
    """Lends arrays; what is no longer referred to, by any view, comes back by itself.

    `take` is for one thread at a time; arrays may die in any thread.
    """

    def __init__(self, limit: int) -> None:
        """Keeps at most `limit` bytes that nobody uses."""
        self.limit = limit
        self._largest = 0
        self._spare: dict[int, list[NDArray[np.uint8]]] = {}
        """By size."""

    @property
    def spare(self) -> int:
        """Bytes held that nobody uses."""
        return sum(size * len(raws) for size, raws in list(self._spare.items()))

    def take(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array of `size` elements with arbitrary contents, its first byte at a multiple of ALIGNED."""
        if size == 0:
            return np.empty(0, dtype)
        needed = self._room(size) * np.dtype(dtype).itemsize
        spare = self._spare.get(needed)
        if spare:
            raw = spare.pop()
        else:
            whole = np.empty(needed + ALIGNED, np.uint8)
            first = -whole.ctypes.data % ALIGNED
            raw = whole[first : first + needed]
        return np.asarray(_Loan(raw, self)).view(dtype)[:size]

    def give(self, raw: NDArray[np.uint8]) -> None:
        """Takes memory back, or lets it go beyond the limit."""
        if self.spare + raw.size <= self.limit:
            self._spare.setdefault(raw.size, []).append(raw)

    def _room(self, size: int) -> int:
        """Elements to take: fragments are nearly equal, so that the memory of one fits the others if rounded up."""
        room = self._largest = max(size, self._largest)
        while room // 2 >= size:
            room //= 2
        return room


class _Loan:
    """What every view of a lent array refers to in the end; it ends with the last of them."""

    def __init__(self, raw: NDArray[np.uint8], home: Buffers) -> None:
        self._raw, self._home = raw, home
        self.__array_interface__ = raw.__array_interface__

    def __del__(self) -> None:
        self._home.give(self._raw)
