"""What users ask of a unit by annotation, as `kubectl atoll heal` and `kubectl atoll drain` write it.

The value is the incarnation that should end. So a request is carried out once, however late it is read.
"""

from __future__ import annotations

from atoll_operator.plan.unit.failure import HOST_MAINTENANCE, RESTART_REQUESTED, Action, Cause
from atoll_operator.plan.unit.unit import UnitObserved

HEAL = "atoll.dev/heal"
DRAIN = "atoll.dev/drain"


def restart(unit: UnitObserved) -> Cause | None:
    """Why the unit's processes should restart on their hosts."""
    if not _asked(unit, HEAL):
        return None
    return Cause(RESTART_REQUESTED, f"annotation {HEAL}", "", action=Action.RESTART_PROCESS)


def move(unit: UnitObserved) -> Cause | None:
    """Why the unit should leave its hosts."""
    return Cause(HOST_MAINTENANCE, f"annotation {DRAIN}", "") if _asked(unit, DRAIN) else None


def _asked(unit: UnitObserved, annotation: str) -> bool:
    return unit.annotations.get(annotation) == str(unit.status.incarnation)
