"""Bodies of pushes under way at a server: of each part one, and none for longer than its sender would wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from atoll_runtime.sync.events import RoundId
from atoll_runtime.sync.rules import TRANSFER_SECONDS
from atoll_runtime.transport.chunks import Assembly
from atoll_runtime.transport.messages import PushHead, PushReply, WireError
from atoll_runtime.transport.transport import Endpoint, Peer


class Pushes:
    """By round, unit and host."""

    def __init__(self, seconds: float = TRANSFER_SECONDS) -> None:
        self._seconds = seconds
        self._deadlines: dict[tuple[RoundId, str, int], asyncio.Timeout] = {}

    async def take(
        self, endpoint: Endpoint, peer: Peer, head: PushHead, stream: AsyncIterator[bytes]
    ) -> PushReply:
        """Serves one push.

        Raises:
            WireError, TimeoutError: see `body`; the endpoint has the bytes back that it had reserved.
        """
        refusal = endpoint.admit(peer, head)
        if refusal:
            return PushReply(False, refusal)
        body: memoryview | None = None
        try:
            body = await self.body(head, stream)
        finally:
            if body is None:
                await asyncio.shield(endpoint.deliver(peer, head, None))
        return await endpoint.deliver(peer, head, body)

    async def body(self, head: PushHead, stream: AsyncIterator[bytes]) -> memoryview:
        """The body of an admitted push; an earlier one of the same part that is still under way ends.

        Raises:
            WireError: it did not arrive whole.
            TimeoutError: it took too long, or its sender has begun it anew.
        """
        older = self._deadlines.get(head.part)
        if older is not None and not older.expired():
            older.reschedule(0.0)
        async with asyncio.timeout(self._seconds) as deadline:
            self._deadlines[head.part] = deadline
            try:
                assembly = Assembly(head.size)
                async for data in stream:
                    assembly.add(data)
            finally:
                if self._deadlines.get(head.part) is deadline:
                    del self._deadlines[head.part]
        if not assembly.whole:
            raise WireError(f"the body ended after {assembly.filled} of {head.size} bytes")
        return assembly.body
