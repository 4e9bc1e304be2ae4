"""A unit leaves hosts that are about to be maintained: condition `Draining`, reason `HostMaintenance`."""

from __future__ import annotations

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import State, find, state
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.removal import DRAIN_SECONDS, removals
from atoll_operator.plan.unit import incarnation
from atoll_operator.plan.unit.budget import Allowance
from atoll_operator.plan.unit.failure import HOST_MAINTENANCE, Cause
from atoll_operator.plan.unit.observed import UnitObserved
from atoll_operator.plan.unit.status import lost, written
from atoll_operator.plan.unit.unitplan import UnitPlan


def under_way(status: LearnerUnitStatus) -> bool:
    """Whether the unit is leaving its hosts."""
    draining = find(status.conditions, "Draining")
    return draining is not None and (draining.status, draining.reason) == ("True", HOST_MAINTENANCE)


def has_moved(status: LearnerUnitStatus) -> bool:
    """Whether the last restart was a move. A pool that tolerates every taint would move for ever."""
    return bool(status.restarts) and status.restarts[-1].reason == HOST_MAINTENANCE


def begin(unit: UnitObserved, cause: Cause, now: float) -> UnitPlan:
    """Write to the status that the unit leaves, before any pod is touched."""
    message = f"{cause.message}; the unit ends between two steps and moves"
    status = incarnation.failing(unit.status, cause, now)
    status = written(unit, status, "Healing", message, _states(message, cause.reason), now)
    notice = Notice("Warning", cause.reason, f"{cause.pod}: {cause.message}", f"{status.incarnation}")
    return UnitPlan(status=status, advance=True, notices=(notice,))


def carry_out(unit: UnitObserved, allowance: Allowance, now: float) -> UnitPlan:
    """Delete the pods with a grace period. When they have ended, or it is over, give the unit new hosts, but not within
    the back-off of an earlier failure."""
    current = [pod for pod in unit.pods if pod.placement == unit.status.placement]
    if untold := tuple(pod for pod in current if not pod.leaves):
        remove, _ = removals(untold, DRAIN_SECONDS, False, now)
        return UnitPlan(status=unit.status, remove=remove, wake=now + DRAIN_SECONDS)
    ends = [pod.deletion_time for pod in current if not pod.ended and pod.deletion_time is not None]
    if ends and max(ends) > now:
        return UnitPlan(status=unit.status, wake=max(ends))
    if allowance.not_before > now:
        until = format_time(allowance.not_before)
        message = f"{HOST_MAINTENANCE}: the hosts are given back; the unit comes back at {until}"
        status = written(unit, unit.status, "Healing", message, _states(message, HOST_MAINTENANCE), now)
        return UnitPlan(status=status, wake=allowance.not_before)
    return incarnation.for_move(unit, HOST_MAINTENANCE, allowance, now)


def _states(message: str, reason: str) -> dict[str, State]:
    return lost(reason, message) | {"Draining": state(True, reason, message)}
