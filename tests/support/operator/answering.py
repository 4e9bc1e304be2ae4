"""A small real HTTP server in place of the API server or of a pod. It can run in its own thread."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from aiohttp import web

from atoll_operator.certificates.authority import load_pair

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
END_SECONDS = 20


def pod_context(bundle: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """The TLS context of a pod. Its callers need a certificate of an authority in the bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=bundle.decode())
    load_pair(context, certificate, key)
    return context


@asynccontextmanager
async def answering(handle: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Start a server and give its address, with TLS if a context is given. All its requests go to `handle`."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)).start()
    server: Any = site._server
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop: Any = asyncio.get_running_loop()
        # Python 3.11 leaves connections open that are being accepted when the server is closed.
        for listener in server.sockets:
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)  # what was accepted gets its transport
        await runner.cleanup()
        # aiohttp does not know connections whose TLS handshake was not over.
        for transport in list(loop._transports.values()):
            if transport._server is server:
                transport.abort()
        await asyncio.sleep(0)


class LoopThread:
    """An event loop in its own thread until it is closed. `close` also exits the contexts that were entered."""

    def __init__(self, name: str) -> None:
        self._held = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)
        self._thread.start()

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        return self._run(self._held.enter_async_context(context))

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)
        self._loop.close()

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(END_SECONDS)

    async def _end(self) -> None:
        await self._held.aclose()
        rest: set[asyncio.Task[Any]] = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        # A TLS connection waits for the other side's close_notify, which a killed process never sends.
        transports: Any = self._loop._transports  # type: ignore[attr-defined]
        for transport in list(transports.values()):
            transport.abort()
        await asyncio.sleep(0.1)  # for the callbacks of their end
