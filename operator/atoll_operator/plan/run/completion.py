"""`Complete` and `Failed`: how a run ends, and when it is deleted after that. A run also ends at its deadline. If
`recovery.belowQuorum` is Fail, it ends some time after fewer than `quorum.min` units have restarts left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.conditions import find, format_time, parse_time
from atoll_operator.plan.run.observed import RunObserved
from atoll_operator.plan.unit.failure import terminated
from atoll_runtime.contract import EXIT_TERMINAL

STARTING_PHASES = ("Pending", "Starting", "Suspending", "Suspended")
"""Phases from which a run starts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    phase: Literal["Complete", "Failed"]
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """No round can be merged until somebody acts."""

    since: str
    """RFC 3339; when this was seen first."""
    fails_at: float | None
    """Unix seconds when the run fails; None: never."""
    counts: str
    """Why, in numbers."""

    @property
    def message(self) -> str:
        """Why, what happens next, and what helps."""
        then = "the run waits" if self.fails_at is None else f"the run fails at {format_time(self.fails_at)}"
        mend = "delete a failed LearnerUnit to try it again, add units or lower quorum.min"
        return f"{self.counts}; {then}: {mend}"


def plan_completion(run: RunObserved, lost: QuorumLost | None, now: float) -> Outcome | None:
    """How the run ended, in this pass or before; None while it goes on."""
    phase, report = run.status.phase, run.syncer.status
    if phase in ("Complete", "Failed"):
        known = find(run.status.conditions, phase)
        return Outcome(phase, known.reason, known.message)
    if report is not None and report.phase == "Finished":
        target = f"step {report.global_step}, {report.tokens} tokens"
        return Outcome("Complete", "TargetReached", f"{target}; final checkpoint {report.final_checkpoint}")
    if report is not None and report.phase == "Failed":
        return Outcome("Failed", "SyncerFailed", report.message or "the syncer gave no reason")
    dead = next((pod for pod in run.syncer_pods if pod.exit_code == EXIT_TERMINAL), None)
    if not run.spec.suspend and dead is not None:
        reason, message = terminated(dead)
        return Outcome("Failed", reason, f"{dead.name} cannot go on: {message}")
    deadline = deadline_end(run, now)
    if deadline is not None and deadline <= now:
        seconds = run.spec.active_deadline_seconds
        return Outcome("Failed", "DeadlineExceeded", f"not finished {seconds} s after the start")
    if lost is not None and lost.fails_at is not None and lost.fails_at <= now:
        waited = f"for {run.spec.recovery.below_quorum_seconds} s"
        return Outcome("Failed", "QuorumLost", f"{lost.counts}, {waited}")
    return None


def quorum_lost(
    spec: TrainingRunSpec, wanted: int, units: Mapping[str, LearnerUnitStatus], known: str | None, now: float
) -> QuorumLost | None:
    """None while enough units learn or may come back, while the run is suspended, or if too few units are wanted.
    `units` are the existing ones of the `wanted` units. `known` is the time from the status, if it has one: units may
    have failed long before too many had."""
    needed, recovery = spec.quorum.min, spec.recovery
    failed = sum(unit.phase == "Failed" for unit in units.values())
    if spec.suspend or wanted < needed or failed <= wanted - needed:
        return None
    since = known or format_time(now)
    fails_at = parse_time(since) + recovery.below_quorum_seconds if recovery.below_quorum == "Fail" else None
    left = f"{wanted - failed} are left, quorum.min is {needed}"
    return QuorumLost(since, fails_at, f"{failed} of {wanted} units are out of restarts, {left}")


def deletion_time(run: RunObserved, status: TrainingRunStatus, now: float) -> float | None:
    """Unix seconds when a run that has ended is deleted; None: never."""
    seconds = run.spec.ttl_seconds_after_finished
    return None if seconds is None else parse_time(status.completion_time or format_time(now)) + seconds


def deadline_end(run: RunObserved, now: float) -> float | None:
    """Unix seconds when `activeDeadlineSeconds` are over; None: never, or not while the run is suspended or waits."""
    seconds, start = run.spec.active_deadline_seconds, run.status.start_time
    if seconds is None or run.spec.suspend or run.waits:
        return None
    return (now if start is None else parse_time(start)) + suspended_seconds(run, now) + seconds


def suspended_seconds(run: RunObserved, now: float) -> int:
    """Seconds of all finished suspensions with the waits for room after them, including one that has just ended."""
    old = run.status
    if run.spec.suspend or run.waits or old.suspend_time is None:
        return old.suspended_seconds
    return old.suspended_seconds + max(round(now - parse_time(old.suspend_time)), 0)


def start_end(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> float | None:
    """Unix seconds until which a missing syncer is not reported; None once that is past or the syncer has answered. The
    time counts from when `Suspended` became False: on the first pass of a run, and when it is resumed. A suspension
    that is taken back before it is done leaves the condition False, and the syncer running."""
    if spec.suspend or old.phase not in STARTING_PHASES:
        return None
    suspended = find(old.conditions, "Suspended")
    begun = parse_time(suspended.last_transition_time) if suspended.status == "False" else now
    end = begun + spec.recovery.startup_seconds
    return end if now < end else None
