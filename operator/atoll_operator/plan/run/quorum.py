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


def quorum_lost(
    spec: TrainingRunSpec, wanted: int, units: Mapping[str, LearnerUnitStatus], known: str | None, now: float
) -> QuorumLost | None:
    """None while enough units learn or may come back, while the run is suspended, or if too few units are wanted.

    Args:
        wanted: units that the spec asks for.
        units: those of them that exist.
        known: RFC 3339, since when the status says so. Units may have failed long before too many had.
    """
    needed, recovery = spec.quorum.min, spec.recovery
    failed = sum(unit.phase == "Failed" for unit in units.values())
    if spec.suspend or wanted < needed or failed <= wanted - needed:
        return None
    since = known or format_time(now)
    fails_at = parse_time(since) + recovery.below_quorum_seconds if recovery.below_quorum == "Fail" else None
    left = f"{wanted - failed} are left, quorum.min is {needed}"
    return QuorumLost(since, fails_at, f"{failed} of {wanted} units are out of restarts, {left}")
