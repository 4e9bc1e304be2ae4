"""A work queue of keys. A key waits at most once, is handled by one worker at a time, and is retried after an error."""

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
"""Longest time between two tries of a key without a new event."""
WORKERS = 64
"""Enough for many heals to wait for the API server at the same time."""
PASSES_SECONDS = 60.0
"""How long the time of a pass is remembered; longer than any spacing."""


@dataclass(frozen=True, slots=True)
class _Delay:
    """The last delay of a key by `Retry`; 0 seconds after a new event."""

    seconds: float = 0.0
    reason: str = ""


class WorkQueue(Generic[K]):
    """Its length is bounded by the number of keys. If `handle` raises, the key is retried with back-off."""

    def __init__(self, handle: Callable[[K], Awaitable[None]], workers: int = WORKERS) -> None:
        self._handle = handle
        self._workers = workers
        self._waiting: OrderedDict[K, float] = OrderedDict()
        """When each key was added."""
        self._working: dict[K, float] = {}
        self._again: set[K] = set()
        """Keys that were added while they are handled."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._passes: OrderedDict[K, float] = OrderedDict()
        """When the last pass over each key ended, in this order."""
        self._failures: dict[K, int] = {}
        self._delays: dict[K, _Delay] = {}
        """Delays by `Retry`, until a pass succeeds."""
        self._waits = asyncio.Semaphore(0)
        """Has one permit per waiting key."""
        self.on_error: Callable[[K, Exception], None] = lambda key, error: None

    def add(self, key: K) -> None:
        """Enqueue the key after a change: immediately, or again after the pass that is running."""
        self._encourage(key)
        self._add(key)

    def add_spaced(self, key: K, seconds: float) -> None:
        """Enqueue the key after a change, but not within `seconds` of its last pass (of now while it is handled)."""
        self._encourage(key)
        last = _now() if key in self._working else self._passes.get(key, float("-inf"))
        self.add_after(key, last + seconds - _now())

    def add_after(self, key: K, seconds: float) -> None:
        """Enqueue the key after `seconds`. The earliest of several times wins; an earlier pass does not cancel it."""
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
        """Enqueue all keys whose last pass failed, because the cause may be over."""
        for key in list(self._failures):
            self._add(key)

    def forget(self, key: K) -> None:
        """Drop timers and failures of a deleted object's key."""
        self._failures.pop(key, None)
        self._delays.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def oldest_seconds(self) -> float:
        """Age of the oldest key that waits or is handled; 0 if there is none."""
        since = [*list(self._waiting.values())[:1], *self._working.values()]
        return _now() - min(since) if since else 0.0

    async def run(self) -> None:
        """Handle keys until cancelled. Timers end with it."""
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
        """Retry after twice the last delay, or after the first one if there was a change since."""
        known = self._delays.get(key, _Delay())
        seconds = min(known.seconds * 2 or error.seconds, MAX_BACK_OFF_SECONDS)
        wait = seconds * random.uniform(0.8, 1.0)
        if known.reason != str(error):
            tell(logging.INFO, "put off", object=str(key), error=str(error), seconds=round(wait, 2))
        self._delays[key] = _Delay(seconds, str(error))
        self.add_after(key, wait)

    def _encourage(self, key: K) -> None:
        """Reset the delay after a change, so that the next `Retry` begins with the shortest one."""
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
