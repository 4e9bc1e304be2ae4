"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and a text about it."""


async def serve(port: int, registry: CollectorRegistry, *, alive: Check, ready: Check) -> web.AppRunner:
    """Start the server; the caller cleans the runner up. A standby operator is as ready as the leader.

    Raises:
        OSError: the port is taken.
    """

    async def health(_: web.Request) -> web.Response:
        return _answer(*alive())

    async def readiness(_: web.Request) -> web.Response:
        return _answer(*ready())

    async def figures(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    pages = {"/healthz": health, "/readyz": readiness, "/metrics": figures}
    application.add_routes([web.get(path, handler) for path, handler in pages.items()])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner


def _answer(well: bool, text: str) -> web.Response:
    return web.Response(status=200 if well else 503, text=text)
