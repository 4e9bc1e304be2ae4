"""Learner and syncer in one process, without a socket. No certificates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from atoll_runtime.protocol.messages import Header, Hello
from atoll_runtime.transport.chunks import Assembly, filled
from atoll_runtime.transport.messages import FetchHead, FetchRequest, PushReply
from atoll_runtime.transport.transport import Endpoint, Peer, TransportError
from atoll_runtime.transport.wire import Down, Up

PEER = Peer((), "in-process")
CALL_SECONDS = 60.0
T = TypeVar("T")


class InProcessNetwork:
    """See `interfaces.Network`. Calls whichever endpoint lives now on `loop`, which is not the caller's."""

    def __init__(self, endpoint: Callable[[], Endpoint | None], loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint, self._loop = endpoint, loop

    async def session(self, hello: Hello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """See `Network`."""
        endpoint, here = self._reach(), asyncio.get_running_loop()
        ups: asyncio.Queue[Up] = asyncio.Queue()
        downs: asyncio.Queue[Down | None] = asyncio.Queue()

        async def incoming() -> AsyncIterator[Up]:
            yield hello
            while True:
                yield await ups.get()

        def tell(message: Down | None) -> None:
            with contextlib.suppress(RuntimeError):  # the client's loop has ended
                here.call_soon_threadsafe(downs.put_nowait, message)

        async def serve() -> None:
            try:
                async for message in endpoint.session(PEER, incoming()):
                    tell(message)
            finally:
                tell(None)

        async def say() -> None:
            async for message in outgoing:
                self._loop.call_soon_threadsafe(ups.put_nowait, message)

        served, sender = asyncio.run_coroutine_threadsafe(serve(), self._loop), asyncio.create_task(say())
        try:
            while (message := await downs.get()) is not None:
                yield message
        finally:
            sender.cancel()
            served.cancel()

    async def push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """See `Network`. A part is there at once, so nothing is broken off."""
        endpoint = self._reach()

        async def receive(assembly: Assembly) -> None:
            assembly.fill(body)

        return await self._call(endpoint.push(PEER, header, receive))

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        """See `Network`."""
        endpoint = self._reach()

        async def call() -> tuple[FetchHead, memoryview] | str:
            return endpoint.fetch(PEER, request)

        found = await self._call(call())
        if isinstance(found, str):
            raise TransportError(found)
        answered()
        head, body = found
        return head, filled(body, head.size)

    broken = 0

    def tune(self, streams: int, chunk: int) -> None:
        """Nothing to set."""

    async def close(self) -> None:
        """Nothing to free."""

    def _reach(self) -> Endpoint:
        endpoint = self._endpoint()
        if endpoint is None:
            raise TransportError("the syncer is away")
        return endpoint

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        try:
            return await asyncio.wait_for(answer, CALL_SECONDS)
        except TimeoutError as error:
            raise TransportError("the syncer in this process did not answer") from error
