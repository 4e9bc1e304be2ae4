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
    """Unix seconds of the last failure of the unit that was one too many."""
    fails_at: float | None
    """When the run is given up; None: never."""
    message: str
    """With what is to come."""
    counts: str
    """Why, alone."""


def quorum_lost(
    spec: TrainingRunSpec, wanted: int, units: Mapping[str, LearnerUnitStatus]
) -> QuorumLost | None:
    """None while enough units learn or may yet come back; fewer than K by the user's own wish are not lost.

    Args:
        wanted: units that the spec asks for.
        units: those of them that exist.
    """
    needed = spec.quorum.min
    ends = sorted(
        parse_time(unit.last_failure.time)
        for unit in units.values()
        if unit.phase == "Failed" and unit.last_failure is not None
    )
    spare = wanted - needed
    if spare < 0 or len(ends) <= spare:
        return None
    recovery = spec.recovery
    since = ends[spare]
    fails_at = since + recovery.below_quorum_seconds if recovery.below_quorum == "Fail" else None
    told = f"{len(ends)} of {wanted} units are out of restarts, {wanted - len(ends)} are left, quorum.min is {needed}"
    help_ = "delete a failed LearnerUnit to try it again, add units or lower quorum.min"
    then = "the run waits" if fails_at is None else f"the run fails at {format_time(fails_at)}"
    return QuorumLost(since, fails_at, f"{told}; {then}: {help_}", told)
