"""A value that others watch. Each watcher sees the newest value, and may miss values in between."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Used on one event loop."""

    def __init__(self, value: T) -> None:
        self.value = value
        self._changed = asyncio.Event()

    def set(self, value: T) -> None:
        """Replaces the value, and wakes the watchers."""
        self.value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, seen: T | None) -> T:
        """Waits until the value is not `seen`, and returns it."""
        while self.value is seen:
            await self._changed.wait()
        return self.value
