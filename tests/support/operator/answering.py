"""A small real HTTP server, in the place of the API server or of a pod."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def answering(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Its address, with TLS where a context is given; every request of it goes to `handle`."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
