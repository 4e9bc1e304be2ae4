"""Keys to look at: each waits once, is worked on by one worker at a time, and comes back later after an error."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from atoll_operator.kube.errors import Conflict, NamespaceEnding, NotLeading, Refused, Retry, Unreachable
from atoll_operator.kube.logs import LOG, tell

K = TypeVar("K", bound=Hashable)
BACK_OFF_SECONDS = 0.25
MAX_BACK_OFF_SECONDS = 60.0
"""Between two tries of a key of which nothing is heard."""
WORKERS = 64
"""Enough for the heals of a large failure to wait for the API server together."""
PASSES_SECONDS = 60.0
"""For which the time of a pass is remembered: longer than any spacing."""


@dataclass(frozen=True, slots=True)
class _Delay:
    """The last one of a key; 0 seconds when something is new since."""

    seconds: float = 0.0
    reason: str = ""


class WorkQueue(Generic[K]):
    """Bounded by the number of keys. `handle` raises to have the key come back with back-off."""

    def __init__(self, handle: Callable[[K], Awaitable[None]], workers: int = WORKERS) -> None:
        self._handle = handle
        self._workers = workers
        self._waiting: OrderedDict[K, float] = OrderedDict()
        """Key to the time at which it was added."""
        self._working: dict[K, float] = {}
        self._again: set[K] = set()
        """Keys added while they are worked on."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._passes: OrderedDict[K, float] = OrderedDict()
        """When the last pass over each key ended, in that order."""
        self._failures: dict[K, int] = {}
        self._delays: dict[K, _Delay] = {}
        """Of keys that were put off by `Retry`, until a pass succeeds."""
        self._waits = asyncio.Semaphore(0)
        """As many permits as keys wait."""
        self.on_error: Callable[[K, Exception], None] = lambda key, error: None

    def add(self, key: K) -> None:
        """Something is new: at once, or once more after the pass that runs now."""
        self._encourage(key)
        self._add(key)

    def add_spaced(self, key: K, seconds: float) -> None:
        """Something is new: at once, but not within `seconds` of its last pass, or of now while it is worked on."""
        self._encourage(key)
        last = _now() if key in self._working else self._passes.get(key, float("-inf"))
        self.add_after(key, last + seconds - _now())

    def add_after(self, key: K, seconds: float) -> None:
        """Nothing is new. The earliest of several wins; a look at the key before then does not cancel it."""
        if seconds <= 0:
            self._add(key)
            return
        due = _now() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(due, self._due, key)

    def retry_failed(self) -> None:
        """Adds all keys that wait because their last pass failed: the cause may be over."""
        for key in list(self._failures):
            self._add(key)

    def forget(self, key: K) -> None:
        """The object is gone: no more timers and no history of failures."""
        self._failures.pop(key, None)
        self._delays.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def oldest_seconds(self) -> float:
        """Age of the oldest key that waits or is worked on; 0 when idle."""
        since = [*list(self._waiting.values())[:1], *self._working.values()]
        return _now() - min(since) if since else 0.0

    async def run(self) -> None:
        """Works until cancelled; no timer outlives that."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _work(self) -> None:
        while True:
            await self._waits.acquire()
            key, _ = self._waiting.popitem(last=False)
            self._working[key] = _now()
            try:
                await self._handle(key)
            except Exception as error:
                self._failed(key, error)
            else:
                self._failures.pop(key, None)
                self._delays.pop(key, None)
            finally:
                self._end(key)
            if key in self._again:
                self._again.discard(key)
                self._add(key)

    def _end(self, key: K) -> None:
        del self._working[key]
        now = self._passes[key] = _now()
        self._passes.move_to_end(key)
        while next(iter(self._passes.values())) < now - PASSES_SECONDS:
            self._passes.popitem(last=False)

    def _failed(self, key: K, error: Exception) -> None:
        if isinstance(error, NamespaceEnding):  # no try can succeed; the object's own end comes as an event
            tell(logging.INFO, "the namespace is being deleted", object=str(key), error=str(error))
            return
        self.on_error(key, error)
        if isinstance(error, Retry):
            self._put_off(key, error)
            return
        count = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(BACK_OFF_SECONDS * 2.0 ** min(count - 1, 16), MAX_BACK_OFF_SECONDS) * random.uniform(
            0.5, 1.0
        )
        if isinstance(error, (Conflict, NotLeading, Refused, Unreachable)):
            tell(logging.WARNING, "will try again", object=str(key), error=str(error), seconds=round(wait, 2))
        else:
            LOG.error("a bug; will try again", exc_info=error, extra={"fields": {"object": str(key)}})
        self.add_after(key, wait)

    def _put_off(self, key: K, error: Retry) -> None:
        """For twice as long as the last time, unless something is new since."""
        known = self._delays.get(key, _Delay())
        seconds = min(known.seconds * 2 or error.seconds, MAX_BACK_OFF_SECONDS)
        wait = seconds * random.uniform(0.8, 1.0)
        if known.reason != str(error):
            tell(logging.INFO, "put off", object=str(key), error=str(error), seconds=round(wait, 2))
        self._delays[key] = _Delay(seconds, str(error))
        self.add_after(key, wait)

    def _encourage(self, key: K) -> None:
        """Something is new: the next try, should it be put off, is as near as the first was."""
        if known := self._delays.get(key):
            self._delays[key] = replace(known, seconds=0.0)

    def _add(self, key: K) -> None:
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = _now()
            self._waits.release()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self._add(key)


def _now() -> float:
    return asyncio.get_running_loop().time()
