"""Whether a run's evaluator is wanted, and what to tell of it. Nothing here holds the run up or degrades it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atoll_operator.api.conditions import EVALUATED
from atoll_operator.api.trainingrun import EvaluationStatus
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import State, find, state
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.evaluator import UNAVAILABLE
from atoll_operator.plan.pods.names import evaluator
from atoll_operator.plan.run.objects import RunObserved
from atoll_operator.plan.unit.failure import hindrance, hindrances
from atoll_runtime.contract import EvaluationReport

BROKEN = ("EvaluatorFailed", "EvaluationFailed", "LossNotFinite", "FinalNotEvaluated")
"""Reasons that are told as an Event, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """What to do about the evaluation of one run."""

    replicas: int | None = None
    """Of its StatefulSet; None: its objects are not wanted."""
    remove: bool = False
    """Whether they are there all the same."""
    status: EvaluationStatus | None = None
    states: Mapping[str, State] = field(default_factory=dict)
    """The condition `Evaluated`; empty for a run that is not to be evaluated."""
    notices: tuple[Notice, ...] = ()
    wake: float | None = None

    @property
    def ask(self) -> bool:
        """Whether the evaluator is to be asked for its status."""
        return bool(self.replicas)


def plan_evaluation(
    run: RunObserved, over: Literal["", "Complete", "Failed"], suspended: bool, now: float
) -> EvaluationPlan:
    """Decides; `over` is how the run ended, in this pass or before."""
    if run.spec.evaluation is None:
        return EvaluationPlan(remove=run.evaluator_there)
    status = _status(run)
    replicas: int | None = 1
    wake = None
    if over == "Complete":
        replicas, verdict, wake = _after_the_end(run, status, run.spec.evaluation.final_seconds, now)
    elif over == "Failed":
        replicas, verdict = None, state(False, "RunFailed")
    elif suspended:
        replicas, verdict = 0, state(False, "Suspended")
    else:
        verdict = _verdict(run)
    _, reason, message = verdict
    return EvaluationPlan(
        replicas=replicas,
        remove=replicas is None and run.evaluator_there,
        status=status,
        states={EVALUATED: verdict},
        notices=(Notice("Warning", reason, message),) if reason in BROKEN else (),
        wake=wake,
    )


def _status(run: RunObserved) -> EvaluationStatus | None:
    """What the evaluator says, or said last."""
    report = run.evaluator.status
    if report is None or report.newest is None:
        return run.status.evaluation
    return EvaluationStatus(**report.newest.model_dump(), evaluated=report.evaluated, skipped=report.skipped)


def _after_the_end(
    run: RunObserved, status: EvaluationStatus | None, patience: int, now: float
) -> tuple[int | None, State, float | None]:
    """Replicas, verdict, and when to look again: the final checkpoint has its turn, within bounds."""
    final = run.feed.status.global_step if run.feed.status is not None else run.status.global_step
    if status is not None and status.step >= final:
        return None, _result(status), None
    end = parse_time(run.status.completion_time or format_time(now)) + patience
    late = f"the final checkpoint, of global step {final}, is not evaluated"
    if now < end:
        return 1, state(False, "EvaluatesFinal", _told(f"{late} yet", _trouble(run))), end
    known = find(run.status.conditions, EVALUATED)
    if known is not None and known.reason == "FinalNotEvaluated":
        return None, state(False, known.reason, known.message), None
    text = f"{late} after {patience} s (spec.evaluation.finalSeconds)"
    return None, state(False, "FinalNotEvaluated", _told(text, _trouble(run))), None


def _verdict(run: RunObserved) -> State:
    """While the run trains."""
    report, reason = run.evaluator.status, run.evaluator.reason
    known = find(run.status.conditions, EVALUATED)
    if report is None and not reason and known is not None and known.status == "True":
        return state(True, known.reason, known.message)  # this operator has just begun to ask
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


def _trouble(run: RunObserved) -> str:
    """Why there is no result, as far as is known: its own words while it answers, else its pod's."""
    said = run.evaluator
    if said.status is not None and not said.reason:
        return said.status.error
    asked = int(said.reason == UNAVAILABLE)
    return hindrances(evaluator(run.name), asked, run.evaluator_pods) or said.message


def _told(text: str, why: str) -> str:
    return f"{text}: {why}" if why else text
