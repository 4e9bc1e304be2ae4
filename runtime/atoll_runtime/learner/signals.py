"""What wakes the tasks of a host's client of the syncer, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from atoll_runtime.transport.messages import Fenced, Refused, Stop

log = logging.getLogger(__name__)


class Signals:
    """The tasks run on one event loop; the training loop has a thread of its own."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        """Of all that the training loop shares with the tasks; notified of a shard's first answer, and of the end."""
        self.ended = False
        """Nothing more will be exchanged."""
        self.last_word: Stop | Fenced | Refused | None = None
        """Of the shard that has ended it."""
        self.failure: Exception | None = None
        """Ended a task."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._noticed = False
        """The tasks will look at what has changed."""

    def start(self) -> None:
        """The tasks run on the event loop of the caller."""
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock, and has the tasks look at what has changed. In any thread."""
        with self.lock:
            yield
            if self._loop is not None and not (self._noticed or self.ended):
                self._noticed = True
                self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Has the tasks look at what has changed. On the event loop."""
        self._noticed = False
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    def end(self, last_word: Stop | Fenced | Refused | None = None) -> None:
        """Nothing more will be exchanged. On the event loop."""
        with self.lock:
            self.ended, self.last_word = True, self.last_word or last_word
            self.lock.notify_all()
        self.wake()

    async def until(self, due: Callable[[], object], seconds: float | None = None) -> bool:
        """Waits for something to do, for so many seconds at most; false at the end."""
        if seconds is None:
            while not (self.ended or due()):
                await self._changed.wait()
        elif not (self.ended or due()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.until(due)
        return not self.ended

    async def work(self, job: Callable[..., Coroutine[Any, Any, None]], *facts: object) -> None:
        """A task. What it does not mend itself (no memory, no further thread) ends the process by way of the training
        loop: without this task the unit would train on, alone, and say nothing."""
        try:
            await job(*facts)
        except Exception as error:
            if not self.ended:
                log.exception("the link to the syncer failed")
                self.failure = error
                self.end()
