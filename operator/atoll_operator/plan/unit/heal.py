"""A heal: it begins with a failure, and ends with a merge, or with the end of the unit or its run."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.api.common import Cost
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan import cost
from atoll_operator.plan.clock import format_time, parse_time


@dataclass(frozen=True, slots=True)
class OpenHeal:
    """A heal that is under way."""

    reason: str
    """Reason of the failure that began it."""
    started: float
    """Unix seconds."""
    chips: int
    step_seconds: float
    """Seconds of the unit's inner step as last known; 0 if unknown."""

    def cost(self, end: float) -> Cost:
        """What it costs if it ends then."""
        return cost.of_heal(max(end - self.started, 0.0), self.chips, self.step_seconds)


def under_way(status: LearnerUnitStatus) -> OpenHeal | None:
    """The heal that is under way, or None."""
    if status.heal_start_time is None:
        return None
    last = status.last_failure.reason if status.last_failure is not None else "Lost"
    return OpenHeal(
        status.heal_reason or last, parse_time(status.heal_start_time), status.chips, status.step_seconds
    )


def begun(status: LearnerUnitStatus, reason: str, moment: float) -> LearnerUnitStatus:
    """The status with a heal that began at `moment`, unless one is under way already."""
    if status.heal_start_time is not None:
        return status
    return status.model_copy(update={"heal_start_time": format_time(moment), "heal_reason": reason})


def ended(status: LearnerUnitStatus, moment: float) -> LearnerUnitStatus:
    """The status without a heal under way; its cost is added to `lost`."""
    heal = under_way(status)
    if heal is None:
        return status
    lost = cost.with_heal(status.lost, heal.reason, heal.cost(moment))
    return status.model_copy(update={"heal_start_time": None, "heal_reason": "", "lost": lost})
