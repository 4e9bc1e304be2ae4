"""The two small HTTP servers of a pod: one with mTLS for members of its run, a plain one for probes and Prometheus."""

from __future__ import annotations

import ssl

from aiohttp import web


class WebServer:
    """Up from the process's start to its end."""

    def __init__(
        self,
        secure: web.Application,
        plain: web.Application,
        context: ssl.SSLContext,
        port: int,
        health_port: int,
    ) -> None:
        self._sites: list[tuple[web.Application, int, ssl.SSLContext | None]] = [
            (secure, port, context),
            (plain, health_port, None),
        ]
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """Raises `OSError` when a port is taken."""
        for app, port, context in self._sites:
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, port=port, ssl_context=context).start()

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
