"""A run that has lost its quorum: so many units are out of restarts that the others are too few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.clock import format_time, parse_time


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """No round can be merged until somebody acts."""

    since: float
    """Unix seconds at which that was seen first."""
    fails_at: float | None
    """When the run is given up; None: never."""
    message: str
    """With what is to come."""
    counts: str
    """Why, alone."""


def quorum_lost(
    spec: TrainingRunSpec, wanted: int, units: Mapping[str, LearnerUnitStatus], known: str | None, now: float
) -> QuorumLost | None:
    """None while enough units learn or may yet come back; fewer than K by the user's own wish are not lost.

    Args:
        wanted: units that the spec asks for.
        units: those of them that exist.
        known: RFC 3339, since when the status says so. Units may have failed long before they were too many.
    """
    needed = spec.quorum.min
    failed = sum(unit.phase == "Failed" for unit in units.values())
    spare = wanted - needed
    if spare < 0 or failed <= spare:
        return None
    recovery = spec.recovery
    since = now if known is None else parse_time(known)
    fails_at = since + recovery.below_quorum_seconds if recovery.below_quorum == "Fail" else None
    told = (
        f"{failed} of {wanted} units are out of restarts, {wanted - failed} are left, quorum.min is {needed}"
    )
    help_ = "delete a failed LearnerUnit to try it again, add units or lower quorum.min"
    then = "the run waits" if fails_at is None else f"the run fails at {format_time(fails_at)}"
    return QuorumLost(since, fails_at, f"{told}; {then}: {help_}", told)
