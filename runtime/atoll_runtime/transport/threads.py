"""A blocking transport as a `Network`: its calls run in threads of their own, which never keep the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from atoll_runtime.transport.messages import (
    Down,
    FetchHead,
    FetchRequest,
    Hello,
    PushHead,
    PushReply,
    ShardHello,
    Up,
)
from atoll_runtime.transport.transport import Transport

T = TypeVar("T")


class Threads:
    """See `interfaces.Network`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def session(self, hello: Hello | ShardHello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """See `Network`. One thread waits for the shard's messages."""
        loop = asyncio.get_running_loop()
        ups: queue.SimpleQueue[Up | None] = queue.SimpleQueue()
        downs: asyncio.Queue[Down | Exception | None] = asyncio.Queue()
        link = await in_thread(self._transport.session, hello, ups.get)

        async def send() -> None:
            async for message in outgoing:
                ups.put(message)

        def receive() -> None:
            message: Down | Exception | None = None
            while True:
                try:
                    message = link.receive()
                except Exception as error:
                    message = error
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(downs.put_nowait, message)
                if message is None or isinstance(message, Exception):
                    return

        sender = asyncio.create_task(send())
        try:
            threading.Thread(target=receive, name="session", daemon=True).start()
            while (received := await downs.get()) is not None:
                if isinstance(received, Exception):
                    raise received
                yield received
        finally:
            sender.cancel()
            ups.put(None)
            link.close()

    async def push(self, head: PushHead, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """See `Network`."""
        return await in_thread(self._transport.push, head, body, wanted)

    async def fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """See `Network`."""
        return await in_thread(self._transport.fetch, request)

    def close(self) -> None:
        """See `Network`."""
        self._transport.close()


def in_thread(job: Callable[..., T], *facts: Any) -> asyncio.Future[T]:
    """The result of a blocking call. Unlike an executor's, its thread does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = job(*facts)
        except Exception as found:
            error = found
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="transfer", daemon=True).start()
    return future
