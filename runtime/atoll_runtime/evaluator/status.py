"""The evaluator's metrics."""

from __future__ import annotations

from atoll_runtime.contract import EvaluatorStatus
from atoll_runtime.transport.web import prometheus

PREFIX = "atoll_evaluator"


def metrics(report: EvaluatorStatus) -> str:
    """The report as Prometheus text. The pod's labels name the run."""
    figures: dict[str, float] = {"checkpoints": report.evaluated, "skipped_total": report.skipped}
    lines = []
    if (newest := report.newest) is not None:
        figures |= {"global_step": newest.step, "tokens": newest.tokens, "seconds": newest.seconds}
        value = "NaN" if newest.loss is None else newest.loss
        lines += [f"# TYPE {PREFIX}_loss gauge", f'{PREFIX}_loss{{split="{newest.split}"}} {value}']
    return "\n".join([*lines, *prometheus(PREFIX, figures)]) + "\n"
