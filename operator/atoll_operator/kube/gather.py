"""Runs several requests at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

from atoll_operator.kube.errors import NotLeading, Unreachable


async def gather_bounded(works: Iterable[Coroutine[None, None, None]], at_once: int | None = None) -> None:
    """Runs all of them, also when some fail; starts no more once one raised `Unreachable` or `NotLeading`.

    Args:
        at_once: how many run at a time; None: all.

    Raises:
        Exception: the first in the order of `works`, so that a status that shows it does not change between tries.
    """
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
