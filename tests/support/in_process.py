"""Learner and syncer in one process, without a socket: for tests and simulations. No certificates."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from atoll_runtime.transport.chunks import filled
from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    Down,
    FetchHead,
    FetchRequest,
    Hello,
    PushHead,
    PushReply,
    Up,
)
from atoll_runtime.transport.transport import Endpoint, Link, Peer, TransportError

PEER = Peer((), "in-process")
CALL_SECONDS = 60.0
T = TypeVar("T")


class InProcessTransport:
    """Calls an endpoint that lives on `loop`, from any other thread."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint, self._loop = endpoint, loop
        self._closed = False

    def session(self, hello: Hello, next_up: Callable[[], Up | None]) -> Link:
        """See `Transport`."""
        self._check()
        return InProcessLink(self._endpoint, self._loop, hello, next_up)

    def push(self, head: PushHead, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """See `Transport`. A part is there at once, so nothing is broken off."""

        async def call() -> PushReply:
            refusal = self._endpoint.admit(PEER, head)
            return (
                PushReply(False, refusal)
                if refusal
                else await self._endpoint.deliver(PEER, head, memoryview(bytearray(body)))
            )

        return self._call(call())

    def fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """See `Transport`."""

        async def call() -> tuple[FetchHead, memoryview] | str:
            return self._endpoint.fetch(PEER, request)

        found = self._call(call())
        if isinstance(found, str):
            raise TransportError(found)
        head, body = found
        return head, filled(body, head.size)

    def directory(self, request: DirectoryRequest) -> DirectoryReply:
        """See `Transport`."""

        async def call() -> DirectoryReply | str:
            return self._endpoint.directory(PEER, request)

        found = self._call(call())
        if isinstance(found, str):
            raise TransportError(found)
        return found

    def close(self) -> None:
        """See `Transport`."""
        self._closed = True

    def _check(self) -> None:
        if self._closed or self._loop.is_closed() or not self._loop.is_running():
            raise TransportError("the syncer in this process has ended")

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._check()
        except TransportError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(CALL_SECONDS)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise TransportError(f"the syncer in this process did not answer: {error!r}") from error


class InProcessLink:
    """A session as a task on the syncer's loop; answers come through a queue."""

    def __init__(
        self,
        endpoint: Endpoint,
        loop: asyncio.AbstractEventLoop,
        hello: Hello,
        next_up: Callable[[], Up | None],
    ) -> None:
        self._down: queue.Queue[Down | None] = queue.Queue()
        self._uplink = concurrent.futures.ThreadPoolExecutor(1, "in-process-session")

        async def incoming() -> AsyncIterator[Up]:
            yield hello
            while (message := await loop.run_in_executor(self._uplink, next_up)) is not None:
                yield message

        async def serve() -> None:
            try:
                async for message in endpoint.session(PEER, incoming()):
                    self._down.put(message)
            finally:
                self._down.put(None)
                self._uplink.shutdown(wait=False)

        self._task = asyncio.run_coroutine_threadsafe(serve(), loop)

    def receive(self) -> Down | None:
        """See `Link`."""
        return self._down.get()

    def close(self) -> None:
        """See `Link`."""
        self._task.cancel()
        self._down.put(None)
