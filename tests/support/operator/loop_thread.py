"""What serves a test from an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS = 20


class LoopThread:
    """Runs until it is closed; what was entered is left then."""

    def __init__(self, name: str) -> None:
        self._held = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)
        self._thread.start()

    def enter(self, context: contextlib.AbstractAsyncContextManager[T]) -> T:
        return self._run(self._held.enter_async_context(context))

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _end(self) -> None:
        await self._held.aclose()
        rest: set[asyncio.Task[Any]] = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.1)  # connections over TLS end after their session
