"""Several requests at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

from atoll_operator.kube.errors import NotLeading, Unreachable


async def together(works: Iterable[Coroutine[None, None, None]], at_once: int | None = None) -> None:
    """All of them, also when some fail; once one found no API server, or another operator in its place, none is begun.

    Args:
        at_once: how many may run at a time, so that the first are done before the last begin; None: any number.

    Raises:
        Exception: the first in the order of `works`, whichever came first: it may stand in a status, and one that
            changes with every try would be news to all who watch.
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
