"""The next incarnation of a unit: on its hosts or on new ones, at once, after a back-off, or never.

A plan of this module writes the status and nothing else. The next pass acts on it, so that the new incarnation is
stored before any pod of the old one is touched.
"""

from __future__ import annotations

from dataclasses import replace

from atoll_operator.api.learnerunit import Failure, LearnerUnitStatus, Restart
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import clip, find, state
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.gang import chips
from atoll_operator.plan.unit import budget, heal, inactive
from atoll_operator.plan.unit.budget import Allowance
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE, Action, Cause
from atoll_operator.plan.unit.observed import Orders, UnitObserved
from atoll_operator.plan.unit.status import BACK_OFF, lost, written
from atoll_operator.plan.unit.unitplan import UnitPlan

LIMIT = 2
"""Restarts on the same hosts after which the unit leaves them: without a merge between them, or within the memory of
the kubelets, which restart a container at once, then after 10 s, then after 20 s."""
KUBELET_MEMORY_SECONDS = 600.0
"""After which a kubelet forgets a container's restarts: twice its longest back-off."""
BUDGET_EXHAUSTED = "RestartBudgetExhausted"


def without_failure(unit: UnitObserved, allowance: Allowance, now: float) -> UnitPlan | None:
    """The plan for a unit that needs an incarnation on new hosts though nothing failed; None if it needs none."""
    status = unit.status
    if status.incarnation == 0 or inactive.was_inactive(status) or unit.spec_changed:
        if status.phase == "Failed":  # the old spec failed: the new one has the whole budget
            status = status.model_copy(update={"restarts": ()})
        return raise_incarnation(unit, status, now)
    if status.phase == "Failed":  # the budget was raised
        reason = status.last_failure.reason if status.last_failure is not None else "Lost"
        return raise_incarnation(unit, _charged(status, allowance, reason, now), now)
    if (
        unit.known_incarnation > status.incarnation
    ):  # of an earlier unit of this name: the syncer fences this one off
        return raise_incarnation(unit, status, now)
    return None


def after_failure(
    unit: UnitObserved,
    orders: Orders,
    cause: Cause,
    action: Action,
    replaced: int,
    allowance: Allowance,
    now: float,
) -> UnitPlan:
    """The current incarnation is lost.

    Args:
        action: what the unit needs, as its slots say.
        replaced: slots that need another pod.
    """
    status = failing(unit.status, cause, now)
    notice = Notice("Warning", cause.reason, f"{cause.pod}: {cause.message}", f"{unit.status.incarnation}")
    if allowance.exhausted and not budget.spared(cause.reason, allowance.recent):
        return _give_up(unit, orders, status, notice, allowance, now)
    if allowance.not_before > now:
        until = format_time(allowance.not_before)
        message = f"{cause.reason}: {cause.message}; tries again at {until}"
        status = written(unit, status, "Healing", message, lost(BACK_OFF, message), now)
        return UnitPlan(status=status, notices=(notice,), wake=allowance.not_before)
    if not _may_stay(unit, orders, now):
        action = Action.LEAVE_PLACE
    stays = action < Action.LEAVE_PLACE
    status = _charged(status, allowance, cause.reason, now, stays, replaced if stays else 0)
    plan = raise_incarnation(unit, status, now, action, replaced)
    return replace(plan, notices=(notice, *plan.notices))


def for_capacity(unit: UnitObserved, why: str, allowance: Allowance, now: float) -> UnitPlan:
    """There is no room where the unit is or is to be. Nothing failed: only the back-off counts it."""
    restart = Restart(time=format_time(now), reason=CAPACITY_UNAVAILABLE)
    status = unit.status.model_copy(update={"restarts": (*allowance.recent, restart)})
    plan = raise_incarnation(unit, status, now)
    notice = Notice(
        "Normal", CAPACITY_UNAVAILABLE, f"looks for another place: {why}", f"{unit.status.placement}"
    )
    return replace(plan, notices=(notice,), doubtful=True)


def for_move(unit: UnitObserved, reason: str, allowance: Allowance, now: float) -> UnitPlan:
    """The unit has left its hosts before they are taken away."""
    return raise_incarnation(unit, _charged(unit.status, allowance, reason, now), now)


def raise_incarnation(
    unit: UnitObserved,
    status: LearnerUnitStatus,
    now: float,
    action: Action = Action.LEAVE_PLACE,
    replaced: int = 0,
) -> UnitPlan:
    """To the next incarnation: above ours, and above any that the syncer knows of a unit of this name."""
    incarnation = max(status.incarnation, unit.known_incarnation) + 1
    stays, healing = action < Action.LEAVE_PLACE, status.heal_start_time is not None
    reason = "SpecChanged" if status.incarnation and unit.spec_changed else "Created"
    reason = status.last_failure.reason if healing and status.last_failure else reason
    how = "is given new hosts"
    if stays:
        how = "restarts in place" + (f"; {replaced} pods are replaced" if replaced else "")
    message = f"{reason}: incarnation {incarnation} {how}"
    states = lost("Restarting" if stays else "Creating", message)
    states["Healing"] = state(healing, reason, message if healing else "")
    if action is Action.RESTART_PROCESS:
        states["Scheduled"] = state(True, "Scheduled")
    status = status.model_copy(
        update={
            "incarnation": incarnation,
            "placement": status.placement if stays else incarnation,
            "chips": chips(unit.spec),
            "seeded_step": None,
            "contributions": 0,
        }
    )
    status = written(unit, status, "Healing" if healing else "Pending", message, states, now)
    notice = Notice("Normal", "RestartInPlace" if stays else "NewGang", message, f"{incarnation}")
    return UnitPlan(status=status, advance=True, notices=(notice,) if healing else ())


def failing(old: LearnerUnitStatus, cause: Cause, now: float) -> LearnerUnitStatus:
    """The status with this failure, and the time at which the heal began."""
    known, healing = old.last_failure, find(old.conditions, "Healing")
    noted = healing is not None and healing.reason == BACK_OFF
    if not noted or known is None or (known.pod, known.reason) != (cause.pod, cause.reason):
        known = Failure(
            reason=cause.reason,
            message=clip(cause.message),
            pod=cause.pod,
            node=cause.node,
            exit_code=cause.exit_code,
            time=format_time(cause.time or now),
        )
    began = heal.begun(old, cause.reason, min(cause.time or now, now))
    return began.model_copy(update={"last_failure": known})


def _may_stay(unit: UnitObserved, orders: Orders, now: float) -> bool:
    """Whether the unit may restart on its hosts once more."""
    status = unit.status
    return (
        orders.recovery.in_place
        and status.incarnation - max(status.placement, status.merged_incarnation) < LIMIT
        and _remembered(status, now) < LIMIT
    )


def _remembered(status: LearnerUnitStatus, now: float) -> int:
    """Restarts on these hosts that the kubelets have not forgotten. Each restart renews their memory."""
    count = 0
    for restart in reversed(status.restarts):
        time = parse_time(restart.time)
        if not restart.in_place or now - time > KUBELET_MEMORY_SECONDS:
            break
        count, now = count + 1, time
    return count


def _charged(
    status: LearnerUnitStatus,
    allowance: Allowance,
    reason: str,
    now: float,
    in_place: bool = False,
    replaced: int = 0,
) -> LearnerUnitStatus:
    """The status with one more restart."""
    restart = Restart(time=format_time(now), reason=reason, in_place=in_place, replaced=replaced)
    restarts = (*allowance.recent, restart)
    return status.model_copy(update={"restarts": restarts, "restart_count": status.restart_count + 1})


def _give_up(
    unit: UnitObserved,
    orders: Orders,
    status: LearnerUnitStatus,
    notice: Notice,
    allowance: Allowance,
    now: float,
) -> UnitPlan:
    """No more tries. The failed unit is kept to be looked at, without its running pods."""
    message = (
        f"{orders.recovery.max_restarts} restarts within {orders.recovery.window_seconds} s are the limit; "
        f"last failure: {notice.reason}: {notice.message}. Delete this LearnerUnit to try again"
    )
    states = lost(BUDGET_EXHAUSTED, message) | {"Healing": state(False, BUDGET_EXHAUSTED, message)}
    status = heal.ended(status, now).model_copy(update={"restarts": allowance.recent})
    status = written(unit, status, "Failed", message, states, now)
    told = Notice("Warning", BUDGET_EXHAUSTED, message, f"{status.incarnation}")
    return UnitPlan(status=status, advance=True, notices=(notice, told))
