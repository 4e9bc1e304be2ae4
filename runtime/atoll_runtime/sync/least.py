"""The least of many values that change one at a time, found without looking at the others."""

from __future__ import annotations

import heapq

SPARE = 64
"""Outdated entries that are let lie, besides as many as there are values."""


class Least:
    """Values by name. A heap, whose outdated entries are passed over as they come up."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, name: str, value: float) -> None:
        """The value of this name from now on."""
        if self._values.get(name) == value:
            return
        self._values[name] = value
        heapq.heappush(self._heap, (value, name))
        if len(self._heap) > 2 * len(self._values) + SPARE:
            self._heap = [(value, name) for name, value in self._values.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """It has no value any more."""
        self._values.pop(name, None)

    def first(self) -> tuple[float, str] | None:
        """The least value and its name; None where there is none."""
        while self._heap and self._values.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
