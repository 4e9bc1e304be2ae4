"""`activeDeadlineSeconds`: it stands still while a run is suspended, as that of a Job does."""

from __future__ import annotations

from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import parse_time


def deadline_end(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> float | None:
    """Unix seconds at which the run is given up; None: never, or not as long as it is suspended."""
    if spec.active_deadline_seconds is None or spec.suspend:
        return None
    begun = now if old.start_time is None else parse_time(old.start_time)
    return begun + suspended_seconds(spec, old, now) + spec.active_deadline_seconds


def suspended_seconds(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> int:
    """Seconds of all suspensions that are over; the status names one that the spec has just ended."""
    if spec.suspend or old.suspend_time is None:
        return old.suspended_seconds
    return old.suspended_seconds + max(round(now - parse_time(old.suspend_time)), 0)
