"""The two small HTTP servers of a pod: one with mTLS for members of its run, a plain one for probes and Prometheus."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from aiohttp import web

from atoll_runtime.contract import EvaluatorStatus, SyncerStatus, dump

R = TypeVar("R", SyncerStatus, EvaluatorStatus)


class WebServer(Generic[R]):
    """`/status` in one; `/healthz`, `/readyz` and `/metrics` in the other. They run as long as the process.

    Args:
        report: returns the present report; called at any time.
        ready: phases in which the pod is ready.
        metrics: Prometheus text of a report.
        stuck: returns why the process must be restarted, or an empty text.
        own: returns the report for probes and metrics of this pod, if `report` covers more than this pod.
    """

    def __init__(
        self,
        report: Callable[[], R],
        ready: Collection[str],
        metrics: Callable[[R], str],
        context: ssl.SSLContext,
        port: int,
        health_port: int,
        stuck: Callable[[], str],
        own: Callable[[], R] | None = None,
    ) -> None:
        self._report: Callable[[], R] = report
        self._own: Callable[[], R] = own or report
        self._stuck: Callable[[], str] = stuck
        self._phases: Collection[str] = ready
        self._text: Callable[[R], str] = metrics
        self.secure, plain = web.Application(), web.Application()
        self.secure.router.add_get("/status", self._tell)
        plain.router.add_get("/healthz", self._alive)
        plain.router.add_get("/readyz", self._ready)
        plain.router.add_get("/metrics", self._metrics)
        self._sites: list[tuple[web.Application, int, ssl.SSLContext | None]] = [
            (self.secure, port, context),
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

    async def _tell(self, _: web.Request) -> web.Response:
        return web.Response(text=dump(self._report()), content_type="application/json")

    async def _alive(self, _: web.Request) -> web.Response:
        why = self._stuck()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _ready(self, _: web.Request) -> web.Response:
        report = self._own()
        status = 200 if report.phase in self._phases else 503
        return web.Response(status=status, text=f"{report.phase}: {report.message}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._text(self._own()))


def prometheus(prefix: str, figures: Mapping[str, float]) -> list[str]:
    """Lines of figures without labels. A figure is a counter if its name ends in `_total`."""
    lines = []
    for name, value in figures.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE {prefix}_{name} {kind}", f"{prefix}_{name} {value}"]
    return lines
