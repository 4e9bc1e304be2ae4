"""What the operator asks before it begins: an API server that is not there yet is waited for."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll_operator.kube.errors import Unreachable
from atoll_operator.kube.logs import tell

T = TypeVar("T")
START_SECONDS = 120.0
"""For which the operator waits for its API server and its definitions; it ends then, and says what it lacks."""


async def answer(ask: Callable[[], Awaitable[T]], seconds: float = START_SECONDS) -> T:
    """Asks until there is an answer.

    Raises:
        Unreachable: there was none within `seconds`; the last one's.
    """
    loop = asyncio.get_running_loop()
    deadline, told = loop.time() + seconds, ""
    while True:
        try:
            return await ask()
        except Unreachable as error:
            if loop.time() >= deadline:
                raise
            if str(error) != told:
                told = str(error)
                tell(logging.WARNING, "waits for the API server", error=told)
        await asyncio.sleep(random.uniform(0.5, 1.0))
