"""`Complete` and `Failed`: how a run ends, and when it is deleted after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.run.deadline import deadline_end
from atoll_operator.plan.run.observed import RunObserved
from atoll_operator.plan.run.quorum import QuorumLost
from atoll_operator.plan.unit.failure import terminated
from atoll_runtime.contract import EXIT_TERMINAL


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    phase: Literal["Complete", "Failed"]
    reason: str = ""
    message: str = ""
    known: bool = False
    """The status already says so, with its reason and message."""


def plan_completion(run: RunObserved, lost: QuorumLost | None, now: float) -> Outcome | None:
    """How the run ended, in this pass or before; None while it goes on."""
    if run.status.phase in ("Complete", "Failed"):
        return Outcome(run.status.phase, known=True)
    report = run.syncer.status
    if report is not None and report.phase == "Finished":
        target = f"step {report.global_step}, {report.tokens} tokens"
        return Outcome("Complete", "TargetReached", f"{target}; final checkpoint {report.final_checkpoint}")
    if report is not None and report.phase == "Failed":
        return Outcome("Failed", "SyncerFailed", report.message or "the syncer gave no reason")
    dead = next((pod for pod in run.syncer_pods if pod.exit_code == EXIT_TERMINAL), None)
    if not run.spec.suspend and dead is not None:
        reason, message = terminated(dead)
        return Outcome("Failed", reason, f"{dead.name} cannot go on: {message}")
    deadline = deadline_end(run.spec, run.status, now)
    if deadline is not None and deadline <= now:
        seconds = run.spec.active_deadline_seconds
        return Outcome("Failed", "DeadlineExceeded", f"not finished {seconds} s after the start")
    if lost is not None and lost.fails_at is not None and lost.fails_at <= now:
        waited = f"for {run.spec.recovery.below_quorum_seconds} s"
        return Outcome("Failed", "QuorumLost", f"{lost.counts}, {waited}")
    return None


def deletion_time(run: RunObserved, status: TrainingRunStatus, now: float) -> float | None:
    """Unix seconds when a run that has ended is deleted; None: never."""
    seconds = run.spec.ttl_seconds_after_finished
    return None if seconds is None else parse_time(status.completion_time or format_time(now)) + seconds
