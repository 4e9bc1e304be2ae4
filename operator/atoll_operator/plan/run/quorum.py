"""`recovery.belowQuorum`: a run with so many units out of restarts that fewer than `quorum.min` are left."""

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
    """Unix seconds when this was seen first."""
    fails_at: float | None
    """Unix seconds when the run fails; None: never."""
    counts: str
    """Why, in numbers."""
    message: str
    """The same with what happens next and what helps."""


def quorum_lost(
    spec: TrainingRunSpec, wanted: int, units: Mapping[str, LearnerUnitStatus], known: str | None, now: float
) -> QuorumLost | None:
    """None while enough units learn or may come back, while the run is suspended, or if too few units are wanted.

    Args:
        wanted: units that the spec asks for.
        units: those of them that exist.
        known: RFC 3339, since when the status says so. Units may have failed long before too many had.
    """
    needed = spec.quorum.min
    failed = sum(unit.phase == "Failed" for unit in units.values())
    spare = wanted - needed
    if spec.suspend or spare < 0 or failed <= spare:
        return None
    recovery = spec.recovery
    since = now if known is None else parse_time(known)
    fails_at = since + recovery.below_quorum_seconds if recovery.below_quorum == "Fail" else None
    counts = (
        f"{failed} of {wanted} units are out of restarts, {wanted - failed} are left, quorum.min is {needed}"
    )
    then = "the run waits" if fails_at is None else f"the run fails at {format_time(fails_at)}"
    mend = "delete a failed LearnerUnit to try it again, add units or lower quorum.min"
    return QuorumLost(since, fails_at, counts, f"{counts}; {then}: {mend}")
