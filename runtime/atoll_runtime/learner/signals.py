"""Wakes and ends the tasks of a host's client of the syncer."""

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
        """Guards all that the training loop shares with the tasks. Notified at a `Welcome`, and at the end."""
        self.ended = False
        """Whether the exchange with the syncer has ended."""
        self.last_word: Stop | Fenced | Refused | None = None
        """The message by which a shard has ended the exchange."""
        self.failure: Exception | None = None
        """The error that ended a task."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters = dict[asyncio.Future[None], Callable[[], object]]()
        """The tasks in `until`, in the order of their calls, and what they wait for."""
        self._noticed = False
        """Whether `wake` is scheduled on the event loop."""

    def start(self) -> None:
        """Call on the event loop that the tasks run on."""
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock, then wakes the tasks for which something is due. Use it in any thread."""
        with self.lock:
            yield
            if self._loop is not None and not (self._noticed or self.ended):
                self._noticed = True
                self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Wakes the tasks for which something is due. Call on the event loop."""
        self._noticed = False
        for waiter, due in self._waiters.items():
            try:
                woken = self.ended or due()
            except Exception:  # the task meets it itself, and ends the process
                woken = True
            if woken and not waiter.done():
                waiter.set_result(None)

    def end(self, last_word: Stop | Fenced | Refused | None = None) -> None:
        """Ends the exchange and the tasks. Call on the event loop."""
        with self.lock:
            self.ended, self.last_word = True, self.last_word or last_word
            self.lock.notify_all()
        self.wake()

    async def until(self, due: Callable[[], object], seconds: float | None = None) -> bool:
        """Waits until `due` or the end, for at most `seconds`; returns false at the end."""
        if self.ended or due():
            return not self.ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self.ended or due()):
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters[waiter] = due
                    try:
                        await waiter
                    finally:
                        del self._waiters[waiter]
        return not self.ended

    async def work(self, job: Callable[..., Coroutine[Any, Any, None]], *facts: object) -> None:
        """Runs a task. An error that it does not handle (no memory, no further thread) ends the process, by way of the
        training loop. Otherwise the unit would train on alone and report nothing."""
        try:
            await job(*facts)
        except Exception as error:
            if not self.ended:
                log.exception("the link to the syncer failed")
                self.failure = error
                self.end()
