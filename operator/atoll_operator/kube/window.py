"""How many requests may be under way: few after a rest, and one more with each that is answered.

A large failure asks for hundreds of requests at once. Sent together they are served together, and the pods of the first
unit are there as late as those of the last; each connection that has to be opened costs both ends a handshake besides.
So a burst begins with few, as in TCP's slow start (RFC 5681), and soon has all connections.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """A context for each request: waits for its turn, in the order of asking.

    Args:
        least: requests at a time after a rest.
        most: at any time.
        rest: seconds without a request.
    """

    def __init__(self, least: int, most: int, rest: float) -> None:
        self._least, self._most, self._rest = least, most, rest
        self._size = least
        self._running = 0
        self._ended = float("-inf")
        """When the last request ended."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._running and loop.time() - self._ended > self._rest:
            self._size = self._least
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come in the same moment
                self._end()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._size = min(self._size + 1, self._most)
        self._end()

    def _end(self) -> None:
        self._running -= 1
        self._ended = asyncio.get_running_loop().time()
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._running < self._size:
            turn = self._waiting.popleft()
            if not turn.done():  # else cancelled while it waited
                self._running += 1
                turn.set_result(None)
