"""The evaluator's report: `/status` over HTTPS with mTLS; `/healthz`, `/readyz` and `/metrics` in plain HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from aiohttp import web

from atoll_runtime.contract import EvaluationContract, EvaluatorStatus, dump
from atoll_runtime.transport.web import WebServer

PREFIX = "atoll_evaluator"


def metrics(report: EvaluatorStatus) -> str:
    """Prometheus text. The run is in the labels that its pod has."""
    figures: dict[str, float] = {"checkpoints": report.evaluated, "skipped_total": report.skipped}
    lines = []
    if (newest := report.newest) is not None:
        figures |= {"global_step": newest.step, "tokens": newest.tokens, "seconds": newest.seconds}
        value = "NaN" if newest.loss is None else newest.loss
        lines += [f"# TYPE {PREFIX}_loss gauge", f'{PREFIX}_loss{{split="{newest.split}"}} {value}']
    for name, figure in figures.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE {PREFIX}_{name} {kind}", f"{PREFIX}_{name} {figure}"]
    return "\n".join(lines) + "\n"


class StatusServer(WebServer):
    """Up from the process's start to its end."""

    def __init__(
        self, report: Callable[[], EvaluatorStatus], context: ssl.SSLContext, contract: EvaluationContract
    ) -> None:
        self._report = report
        secure, plain = web.Application(), web.Application()
        secure.router.add_get("/status", self._tell)
        plain.router.add_get("/healthz", self._alive)
        plain.router.add_get("/readyz", self._ready)
        plain.router.add_get("/metrics", self._metrics)
        super().__init__(secure, plain, context, contract.status_port, contract.health_port)

    async def _tell(self, _: web.Request) -> web.Response:
        return web.Response(text=dump(self._report()), content_type="application/json")

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        report = self._report()
        status = 503 if report.phase == "Starting" else 200
        return web.Response(status=status, text=f"{report.phase}: {report.message}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=metrics(self._report()))
