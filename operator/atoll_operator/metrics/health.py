"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from atoll_operator.metrics.process import Metrics

Check = Callable[[], str]
"""Returns what is wrong, or an empty text."""


async def serve(
    port: int,
    metrics: Metrics,
    *,
    alive: Check,
    ready: Check,
    role: Callable[[], str],
    refresh: Callable[[], None],
) -> web.AppRunner:
    """Start the server; the caller cleans the runner up. A standby operator is as ready as the leader.

    Raises:
        OSError: the port is taken.
    """

    async def health(_: web.Request) -> web.Response:
        return _answer(alive(), "ok")

    async def readiness(_: web.Request) -> web.Response:
        return _answer(ready(), f"ok, {role()}")

    async def figures(_: web.Request) -> web.Response:
        refresh()
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    application = web.Application()
    application.add_routes(
        [web.get("/healthz", health), web.get("/readyz", readiness), web.get("/metrics", figures)]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner


def _answer(problem: str, fine: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=problem or fine)
