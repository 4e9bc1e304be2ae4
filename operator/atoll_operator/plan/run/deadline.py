"""`activeDeadlineSeconds`, which excludes time in suspension like a Job's, and the time a run may take to start."""

from __future__ import annotations

from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.conditions import find

STARTING_PHASES = ("Pending", "Starting", "Suspending", "Suspended")
"""Phases from which a run starts."""


def deadline_end(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> float | None:
    """Unix seconds when the run fails; None: never, or not while it is suspended."""
    if spec.active_deadline_seconds is None or spec.suspend:
        return None
    begun = now if old.start_time is None else parse_time(old.start_time)
    return begun + suspended_seconds(spec, old, now) + spec.active_deadline_seconds


def suspended_seconds(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> int:
    """Seconds of all finished suspensions, including one that the spec has just ended."""
    if spec.suspend or old.suspend_time is None:
        return old.suspended_seconds
    return old.suspended_seconds + max(round(now - parse_time(old.suspend_time)), 0)


def start_end(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> float | None:
    """Unix seconds until which a missing syncer is not reported; None once that is past or the syncer has answered.

    The time counts from when `Suspended` became False: on the first pass of a run, and when it is resumed. A suspension
    that is taken back before it is done leaves the condition False, and the syncer running.
    """
    if spec.suspend or old.phase not in STARTING_PHASES:
        return None
    suspended = find(old.conditions, "Suspended")
    active = suspended is not None and suspended.status == "False"
    begun = parse_time(suspended.last_transition_time) if suspended is not None and active else now
    end = begun + spec.recovery.startup_seconds
    return end if now < end else None
