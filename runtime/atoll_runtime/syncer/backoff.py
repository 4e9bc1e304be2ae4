"""Waits between attempts, longer each time, with jitter, up to a limit."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """`first` and `longest` are in seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._attempt = 0

    def seconds(self) -> float:
        """Returns the seconds until the next attempt, and counts the attempt."""
        seconds = min(self._longest, self._first * 2.0 ** min(self._attempt, 16))
        self._attempt += 1
        return seconds * random.uniform(0.5, 1.0)

    async def wait(self) -> None:
        """Sleeps before the next attempt."""
        await asyncio.sleep(self.seconds())
