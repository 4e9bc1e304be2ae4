"""The evaluator's report: `/status` over HTTPS with mTLS; `/healthz`, `/readyz` and `/metrics` in plain HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from atoll_runtime.contract import EvaluationContract, EvaluatorStatus
from atoll_runtime.transport.web import WebServer, prometheus

PREFIX = "atoll_evaluator"
READY = ("Waiting", "Evaluating")


def metrics(report: EvaluatorStatus) -> str:
    """The report as Prometheus text. The pod's labels name the run."""
    figures: dict[str, float] = {"checkpoints": report.evaluated, "skipped_total": report.skipped}
    lines = []
    if (newest := report.newest) is not None:
        figures |= {"global_step": newest.step, "tokens": newest.tokens, "seconds": newest.seconds}
        value = "NaN" if newest.loss is None else newest.loss
        lines += [f"# TYPE {PREFIX}_loss gauge", f'{PREFIX}_loss{{split="{newest.split}"}} {value}']
    return "\n".join([*lines, *prometheus(PREFIX, figures)]) + "\n"


class StatusServer(WebServer[EvaluatorStatus]):
    """Serves the status and the health checks at the ports of the contract."""

    def __init__(
        self, report: Callable[[], EvaluatorStatus], context: ssl.SSLContext, contract: EvaluationContract
    ) -> None:
        super().__init__(report, READY, metrics, context, contract.status_port, contract.health_port)
