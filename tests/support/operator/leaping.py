"""An event loop whose clock leaps to the next timer: an hour of waiting takes a moment, and always the same steps."""

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
    """Runs `work`, which waits for nothing but time, from second 0."""
    with asyncio.Runner(loop_factory=_loop) as runner:
        # Its `run` would handle SIGINT, for which the text of the whole world is made each time.
        return runner.get_loop().run_until_complete(work)
