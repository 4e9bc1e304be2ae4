"""Several requests at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable


async def together(works: Iterable[Coroutine[None, None, None]], at_once: int | None = None) -> None:
    """All of them, also when some fail.

    Args:
        at_once: how many may run at a time, so that the first are done before the last begin; None: any number.

    Raises:
        Exception: the first in the order of `works`, whichever came first: it may stand in a status, and one that
            changes with every try would be news to all who watch.
    """
    todo = list(works)
    slots = asyncio.Semaphore(at_once or max(len(todo), 1))

    async def one(work: Coroutine[None, None, None]) -> None:
        async with slots:
            await work

    for result in await asyncio.gather(*map(one, todo), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
