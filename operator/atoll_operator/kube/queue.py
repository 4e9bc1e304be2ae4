"""Concurrent work: a queue of keys, several coroutines at once, and waits between tries."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from atoll_operator.kube.errors import ApiError, NotLeading, Retry, Unreachable
from atoll_operator.kube.logs import LOG, log

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
BACK_OFF_SECONDS = 0.25
MAX_BACK_OFF_SECONDS = 60.0
"""Longest time between two tries of a key without a new event."""
START_SECONDS = 120.0
LANE_RATE = 8.0
"""Largest number of passes a second over all keys of a lane. A pass covers all changes before it."""
WORKERS = 64
"""Enough for many heals to wait for the API server at the same time."""


@dataclass(slots=True)
class _Record:
    waiting_since: float | None = None
    """Also set while the key is handled, if it was added meanwhile."""
    handled_since: float | None = None
    forgotten: bool = False
    timer: asyncio.TimerHandle | None = None
    """Timer of the next pass; cancelled when a pass begins."""
    last_pass: float = float("-inf")
    failures: int = 0
    """Passes that failed since the last change or success."""
    reason: str = ""

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class WorkQueue(Generic[K]):
    """A queue of keys. Each waits at most once, so the queue is bounded, and is handled by one worker at a time. If
    `handle` raises, the key is retried with back-off."""

    def __init__(self, handle: Callable[[K], Awaitable[None]], workers: int = WORKERS) -> None:
        self._handle = handle
        self._workers = workers
        self._waiting: asyncio.Queue[K] = asyncio.Queue()
        self._records: dict[K, _Record] = {}
        self._lanes: dict[str, dict[K, float]] = {}
        """Of each lane in which keys wait for a turn, from when a turn may be the key's."""

    def add(self, key: K, seconds: float = 0.0, lane: str = "") -> None:
        """Enqueue the key after a change: immediately, or again after the running pass. The pass begins at least
        `seconds` after the last one (after now while one runs). A lane is for passes that only report something: they
        begin at most at `LANE_RATE`, and do not end a back-off."""
        record, now = self._record(key), _now()
        due = (record.last_pass if record.handled_since is None else now) + seconds
        if not lane:
            record.failures = 0
            self.add_after(key, due - now)
        elif lane in self._lanes:
            self._lanes[lane][key] = min(due, self._lanes[lane].get(key, due))
        else:
            self._lanes[lane] = {key: due}
            self._turn(lane)

    def add_after(self, key: K, seconds: float) -> None:
        """Enqueue the key after `seconds`. The earliest of several times wins, and the next pass cancels it."""
        record, due = self._record(key), _now() + seconds
        if seconds <= 0:
            self._enqueue(key)
        elif record.timer is None or due < record.timer.when():
            record.cancel()
            record.timer = asyncio.get_running_loop().call_at(due, self._enqueue, key)

    def retry_failed(self) -> None:
        """Enqueue all keys whose last pass failed, because the cause may be over."""
        for key, record in self._records.items():
            if record.reason:
                self._enqueue(key)

    def forget(self, key: K) -> None:
        """Drop what is known of a deleted object's key."""
        if (record := self._records.get(key)) is not None:
            record.forgotten, record.reason = True, ""
            self._cancel(key, record)

    @property
    def depth(self) -> int:
        return self._waiting.qsize()

    def oldest_seconds(self) -> float:
        """Age of the oldest key that waits or is handled; 0 if there is none."""
        records = self._records.values()
        since = (time for record in records for time in (record.waiting_since, record.handled_since))
        return _now() - min((time for time in since if time is not None), default=_now())

    async def run(self) -> None:
        """Handle keys until cancelled. Then cancel all timers."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for key, record in self._records.items():
                self._cancel(key, record)

    async def _work(self) -> None:
        while True:
            key = await self._waiting.get()
            record = self._records[key]
            record.waiting_since, record.handled_since = None, _now()
            self._cancel(key, record)
            record.forgotten = False
            try:
                await self._handle(key)
            except Exception as error:
                self._failed(key, record, error)
            else:
                record.failures, record.reason = 0, ""
            finally:
                record.handled_since, record.last_pass = None, _now()
            if record.waiting_since is not None:
                self._waiting.put_nowait(key)
            elif record.forgotten and record.timer is None:
                del self._records[key]

    def _failed(self, key: K, record: _Record, error: Exception) -> None:
        """Retry after twice the last delay, or the first one if the key was added since. Log each reason once."""
        first = error.seconds if isinstance(error, Retry) else BACK_OFF_SECONDS
        record.failures += 1
        wait = back_off(record.failures, first, MAX_BACK_OFF_SECONDS)
        if record.reason != (reason := str(error) or type(error).__name__):
            record.reason = reason
            fields = {"object": str(key), "error": record.reason, "seconds": round(wait, 2)}
            if isinstance(error, Retry):
                log(logging.INFO, "put off", **fields)
            elif isinstance(error, (ApiError, NotLeading, Unreachable)):
                log(logging.WARNING, "will try again", **fields)
            else:
                LOG.error("a bug; will try again", exc_info=error, extra={"fields": fields})
        self.add_after(key, wait)

    def _record(self, key: K) -> _Record:
        return self._records.setdefault(key, _Record())

    def _cancel(self, key: K, record: _Record) -> None:
        """Drop the passes over the key that are due later."""
        record.cancel()
        for waiting in self._lanes.values():
            waiting.pop(key, None)

    def _turn(self, lane: str) -> None:
        """Enqueue the key that was due first. A lane has `LANE_RATE` turns a second while keys wait in it."""
        waiting, now = self._lanes[lane], _now()
        if not waiting:
            del self._lanes[lane]
            return
        first = min(waiting, key=waiting.__getitem__)
        if waiting[first] <= now:
            del waiting[first]
            self._enqueue(first)
        asyncio.get_running_loop().call_at(now + 1 / LANE_RATE, self._turn, lane)

    def _enqueue(self, key: K) -> None:
        record = self._record(key)
        if record.waiting_since is None:
            record.waiting_since = _now()
            if record.handled_since is None:
                self._waiting.put_nowait(key)


def _now() -> float:
    return asyncio.get_running_loop().time()


def back_off(failures: int, first: float, most: float) -> float:
    """Seconds before the next try after this number of failures in a row: doubled each time, with jitter."""
    return min(first * 2.0 ** min(failures - 1, 16), most) * random.uniform(0.8, 1.0)


async def gather_bounded(works: Iterable[Coroutine[None, None, None]], at_once: int) -> None:
    """Runs all coroutines, `at_once` at a time, even if some fail. Starts no more after one has raised `Unreachable` or
    `NotLeading`. Takes each from the iterable only when it can run. Raises the first exception in the order of the
    coroutines, so that a status that shows it does not change between tries."""
    todo, failures, in_vain = enumerate(works), dict[int, Exception](), False

    async def work_off(first: tuple[int, Coroutine[None, None, None]]) -> None:
        nonlocal in_vain
        for number, work in chain([first], todo):
            if in_vain:
                work.close()
                continue
            try:
                await work
            except Exception as error:
                failures[number] = error
                in_vain = in_vain or isinstance(error, (Unreachable, NotLeading))

    await asyncio.gather(*map(work_off, islice(todo, at_once)))
    if failures:
        raise failures[min(failures)]


async def wait_for_api(ask: Callable[[], Awaitable[T]]) -> T:
    """Retries `ask` while it raises Unreachable, for `START_SECONDS`; then raises the last one."""
    deadline, logged = _now() + START_SECONDS, ""
    while True:
        try:
            return await ask()
        except Unreachable as error:
            if _now() >= deadline:
                raise
            if str(error) != logged:
                logged = str(error)
                log(logging.WARNING, "waits for the API server", error=logged)
        await asyncio.sleep(random.uniform(0.5, 1.0))


async def until_first(*works: Coroutine[Any, Any, Any]) -> None:
    """Runs all until the first ends, and cancels the others. Raises what the first raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
