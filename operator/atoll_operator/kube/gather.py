"""Several coroutines at the same time, and waits between tries."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from atoll_operator.kube.errors import NotLeading, Unreachable
from atoll_operator.kube.logs import tell

T = TypeVar("T")
START_SECONDS = 120.0


def back_off(failures: int, first: float, most: float) -> float:
    """Seconds before the next try after so many failures in a row: doubled each time, with jitter."""
    return min(first * 2.0 ** min(failures - 1, 16), most) * random.uniform(0.8, 1.0)


async def gather_bounded(works: Iterable[Coroutine[None, None, None]], at_once: int | None = None) -> None:
    """Runs all of them, `at_once` at a time, also when some fail; starts no more once one raised `Unreachable` or
    `NotLeading`. Raises the first exception in the order of `works`, so that a status that shows it does not change
    between tries."""
    todo = list(works)
    slots = asyncio.Semaphore(at_once or max(len(todo), 1))
    in_vain = False

    async def one(work: Coroutine[None, None, None]) -> None:
        nonlocal in_vain
        async with slots:
            if in_vain:
                work.close()
                return
            try:
                await work
            except (Unreachable, NotLeading):
                in_vain = True
                raise

    for result in await asyncio.gather(*map(one, todo), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def wait_for_api(ask: Callable[[], Awaitable[T]], seconds: float = START_SECONDS) -> T:
    """Retries `ask` while it raises Unreachable; raises the last one after so many seconds."""
    deadline, told = asyncio.get_running_loop().time() + seconds, ""
    while True:
        try:
            return await ask()
        except Unreachable as error:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            if str(error) != told:
                told = str(error)
                tell(logging.WARNING, "waits for the API server", error=told)
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
