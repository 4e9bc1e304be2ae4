"""A value that others watch: each sees the newest, and may miss those between."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Of one event loop."""

    def __init__(self, value: T) -> None:
        self.value = value
        self._changed = asyncio.Event()

    def set(self, value: T) -> None:
        """Replaces it."""
        self.value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, seen: T | None) -> T:
        """The value, once it is another one than `seen`."""
        while self.value is seen:
            await self._changed.wait()
        return self.value
