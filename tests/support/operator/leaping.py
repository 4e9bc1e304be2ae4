"""An event loop with a clock that jumps to the next timer. An hour of waiting takes a moment, always in the same
steps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _Leaps(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def _loop() -> asyncio.AbstractEventLoop:
    leaps = _Leaps()
    loop = asyncio.SelectorEventLoop(leaps)
    loop.time = lambda: leaps.now  # type: ignore[method-assign]
    return loop


def leap(work: Coroutine[None, None, T]) -> T:
    """Runs `work`, which waits only for time, from second 0."""
    with asyncio.Runner(loop_factory=_loop) as runner:
        # The runner's own `run` would handle SIGINT, and for that format the whole world as text each time.
        return runner.get_loop().run_until_complete(work)
