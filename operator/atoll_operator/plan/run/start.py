"""A run that starts, for the first time or after a suspension: how long its syncer may be still to come."""

from __future__ import annotations

from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.conditions import find

BEFORE = ("Pending", "Starting", "Suspending", "Suspended")
"""Phases out of which a run starts."""


def start_end(spec: TrainingRunSpec, old: TrainingRunStatus, now: float) -> float | None:
    """When a syncer that has not come by then is worth a word; None once that is past, or the syncer was there.

    `Suspended` is False from a run's first visit on, and again from its resumption: the time has no other place. A
    suspension that is taken back before it is done leaves it False, and the syncer where it was.
    """
    if spec.suspend or old.phase not in BEFORE:
        return None
    suspended = find(old.conditions, "Suspended")
    going = suspended is not None and suspended.status == "False"
    begun = parse_time(suspended.last_transition_time) if suspended is not None and going else now
    end = begun + spec.recovery.startup_seconds
    return end if now < end else None
