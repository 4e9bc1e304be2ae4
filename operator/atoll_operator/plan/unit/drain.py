"""A unit leaves hosts that are about to be maintained: condition `Draining`, reason `HostMaintenance`."""

from __future__ import annotations

from dataclasses import replace

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan.conditions import Notice, find, format_time, state
from atoll_operator.plan.pods.template import DRAIN_SECONDS
from atoll_operator.plan.pods.view import removals
from atoll_operator.plan.unit import incarnation
from atoll_operator.plan.unit.failure import HOST_MAINTENANCE, Cause
from atoll_operator.plan.unit.unit import UnitObserved, UnitPlan, lost

DRAIN = "atoll.dev/drain"
"""Annotation by which a user asks for it, as `kubectl atoll drain` writes it."""


def asked(unit: UnitObserved) -> Cause | None:
    """Why a user wants the unit to leave its hosts."""
    return Cause(HOST_MAINTENANCE, f"annotation {DRAIN}", "") if unit.is_asked(DRAIN) else None


def under_way(unit: UnitObserved) -> bool:
    draining = find(unit.status.conditions, "Draining")
    return (draining.status, draining.reason) == ("True", HOST_MAINTENANCE)


def may_begin(unit: UnitObserved, budget: incarnation.Budget) -> bool:
    """A unit leaves at once, but waits for its back-off if its last restart was such a move already. Otherwise a pool
    that tolerates every taint would move for ever."""
    restarts = unit.status.restarts
    return budget.not_before <= unit.now or not restarts or restarts[-1].reason != HOST_MAINTENANCE


def begin(unit: UnitObserved, cause: Cause) -> UnitPlan:
    """Write to the status that the unit leaves, before any pod is touched."""
    status = incarnation.failing(unit, cause)
    status = _written(unit, status, f"{cause.message}; the unit ends between two steps and moves")
    notice = Notice("Warning", cause.reason, cause.text, f"{status.incarnation}")
    return UnitPlan(status=status, advance=True, notices=(notice,))


def carry_out(unit: UnitObserved, budget: incarnation.Budget) -> UnitPlan:
    """Delete the pods with a grace period. When they have ended, or that period is over, give the unit new hosts, but
    not within the back-off of an earlier failure."""
    now = unit.now
    current = [pod for pod in unit.pods if pod.placement == unit.status.placement]
    if untold := [pod for pod in current if not pod.leaves]:
        remove, _ = removals(untold, DRAIN_SECONDS, False, now)
        return UnitPlan(status=unit.status, remove=remove, wake=now + DRAIN_SECONDS)
    ends = [pod.deletion_time for pod in current if not pod.ended and pod.deletion_time is not None]
    if ends and max(ends) > now:
        return UnitPlan(status=unit.status, wake=max(ends))
    if budget.not_before > now:
        until = format_time(budget.not_before)
        message = f"{HOST_MAINTENANCE}: the hosts are given back; the unit comes back at {until}"
        return UnitPlan(status=_written(unit, unit.status, message), wake=budget.not_before)
    charged = incarnation.charged(unit, unit.status, budget, HOST_MAINTENANCE)
    plan = incarnation.raise_incarnation(unit, charged)
    return replace(plan, needs_fresh_list=len(current) < unit.hosts)


def _written(unit: UnitObserved, status: LearnerUnitStatus, message: str) -> LearnerUnitStatus:
    states = lost(HOST_MAINTENANCE, message) | {"Draining": state(True, HOST_MAINTENANCE, message)}
    return unit.written(status, "Healing", message, states)
