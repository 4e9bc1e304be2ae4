"""`evaluation`: whether the evaluator runs, and the condition `Evaluated`. It neither delays nor degrades the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atoll_operator.api.common import EVALUATED
from atoll_operator.api.trainingrun import EvaluationStatus
from atoll_operator.plan.conditions import Notice, State, find, format_time, parse_time, state
from atoll_operator.plan.pods.names import evaluator
from atoll_operator.plan.run.observed import RunObserved
from atoll_operator.plan.unit.waiting import hindrance, hindrances
from atoll_runtime.contract import EvaluationReport

UNAVAILABLE = "EvaluatorUnavailable"
BROKEN = ("EvaluatorFailed", "EvaluationFailed", "LossNotFinite", "FinalNotEvaluated")
"""Reasons for which an Event is created, once each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    replicas: int | None = None
    """Replicas of the evaluator's StatefulSet. None: its objects are not wanted."""
    status: EvaluationStatus | None = None
    states: Mapping[str, State] = field(default_factory=dict)
    """The condition `Evaluated`; empty for a run that is not to be evaluated."""
    notices: tuple[Notice, ...] = ()
    wake: float | None = None


def plan_evaluation(
    run: RunObserved, over: Literal["", "Complete", "Failed"], suspended: bool, now: float
) -> EvaluationPlan:
    """Plan the evaluation; `over`: how the run ended, in this pass or before."""
    if run.spec.evaluation is None:
        return EvaluationPlan()
    status, verdict, wake = _status(run), state(False, "RunFailed"), None
    replicas: int | None = None
    if over == "Complete":
        replicas, verdict, wake = _after_the_end(run, status, run.spec.evaluation.final_seconds, now)
    elif not over:
        replicas, verdict = (0, state(False, "Suspended")) if suspended else (1, _verdict(run))
    states, (_, reason, message) = {EVALUATED: verdict}, verdict
    notices = (Notice("Warning", reason, message),) if reason in BROKEN else ()
    return EvaluationPlan(replicas=replicas, status=status, states=states, notices=notices, wake=wake)


def _status(run: RunObserved) -> EvaluationStatus | None:
    report = run.evaluator.status
    if report is None or report.newest is None:
        return run.status.evaluation
    return EvaluationStatus(**report.newest.model_dump(), evaluated=report.evaluated, skipped=report.skipped)


def _after_the_end(
    run: RunObserved, status: EvaluationStatus | None, limit: int, now: float
) -> tuple[int | None, State, float | None]:
    """Replicas, condition and time of the next pass: the final checkpoint is evaluated, within a time limit."""
    final = run.syncer.status.global_step if run.syncer.status is not None else run.status.global_step
    if status is not None and status.step >= final:
        return None, _result(status), None
    end = parse_time(run.status.completion_time or format_time(now)) + limit
    late = f"the final checkpoint, of global step {final}, is not evaluated"
    if now < end:
        return 1, state(False, "EvaluatesFinal", _trouble(run, f"{late} yet")), end
    known = find(run.status.conditions, EVALUATED)
    if known.reason == "FinalNotEvaluated":
        return None, state(False, known.reason, known.message), None
    text = f"{late} after {limit} s (spec.evaluation.finalSeconds)"
    return None, state(False, "FinalNotEvaluated", _trouble(run, text)), None


def _verdict(run: RunObserved) -> State:
    """The condition while the run trains."""
    report, reason = run.evaluator.status, run.evaluator.reason
    known = find(run.status.conditions, EVALUATED)
    if report is None and not reason and known.status == "True":
        return state(True, known.reason, known.message)  # this operator has just started to poll
    dead = next((pod for pod in run.evaluator_pods if pod.exit_code), None)
    if report is None or reason:
        if dead is not None:
            return state(False, "EvaluatorFailed", hindrance(dead))
        starts = report is None and reason in ("", UNAVAILABLE)
        return state(False, "EvaluatorStarting" if starts else reason, _trouble(run))
    if report.error:
        return state(False, "EvaluationFailed", report.error)
    if report.newest is None:
        return state(False, "NoResult", report.message)
    return _result(report.newest)


def _result(report: EvaluationReport) -> State:
    mean = f"nats per token over {report.tokens} tokens of split {report.split}"
    if report.loss is None:
        return state(False, "LossNotFinite", f"global step {report.step}: not finite {mean}")
    return state(True, "Evaluated", f"global step {report.step}: {report.loss:.4f} {mean}")


def _trouble(run: RunObserved, text: str = "") -> str:
    """`text`, and why there is no result: from the evaluator's report while it answers, otherwise from its pod."""
    known = run.evaluator
    if known.status is not None and not known.reason:
        why = known.status.error
    else:
        missing = int(known.reason == UNAVAILABLE)
        why = hindrances(evaluator(run.name), missing, run.evaluator_pods) or known.message
    return ": ".join(filter(None, (text, why)))
