"""The next incarnation of a unit (`spec.recovery`): on its hosts or on new ones, at once, after a back-off, or never. A
plan of this module writes the status and nothing else. The next pass acts on it, so that the new incarnation is stored
before any pod of the old one is touched."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll_operator.api.learnerunit import MAX_RESTARTS, Failure, LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import Notice, clip, find, format_time, parse_time, state, states_of
from atoll_operator.plan.limits import NAMESPACE_LIMIT
from atoll_operator.plan.unit import failure
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE, HOST_MAINTENANCE, SUSPECT, Action, Cause
from atoll_operator.plan.unit.status import ended_heal, last_reason
from atoll_operator.plan.unit.unit import BACK_OFF, RUN_NOT_FOUND, SKEW_SECONDS, UnitObserved, UnitPlan, lost
from atoll_runtime.contract import EXIT_FENCED, EXIT_TERMINAL, VERSION_MISMATCH

LIMIT = 2
"""Restarts on the same hosts after which the unit leaves them. They count if no merge came between them, or if the
kubelets remember them: these restart a container at once, then after 10 s, then after 20 s."""
KUBELET_MEMORY_SECONDS = 600.0
"""Time after which a kubelet forgets a container's restarts: twice its longest back-off."""
BASE_SECONDS = 5.0
MAX_SECONDS = 300.0
SPREAD = 0.2
"""Jitter as a share of a wait, so that units that failed together do not come back together."""
UNCOUNTED = {
    HOST_MAINTENANCE, CAPACITY_UNAVAILABLE, VERSION_MISMATCH, failure.PREEMPTED, failure.RESTART_REQUESTED
}  # fmt: skip
"""Reasons that are no fault of the unit. They cause a back-off, but are not charged to `maxRestarts`."""
BUDGET_EXHAUSTED = "RestartBudgetExhausted"


@dataclass(frozen=True, slots=True)
class Budget:
    not_before: float
    """Unix seconds; in the past: at once."""
    exhausted: bool
    recent: tuple[Restart, ...]
    """Restarts still within the window, with room for one more."""


def budget_of(restarts: Sequence[Restart], recovery: RecoverySpec, now: float, jitter: float) -> Budget:
    """The first heal in a window is immediate; the n-th after it waits 5 s · 2ⁿ⁻¹, at most 300 s, after the last.
    `jitter`, from 0 to 1, changes this by up to `SPREAD`, and is the same for the same wait. A restart in the future
    comes from a wrong clock and is ignored."""
    begin, end = now - recovery.window_seconds, now + SKEW_SECONDS
    recent = tuple(item for item in restarts if begin < parse_time(item.time) <= end)[-(MAX_RESTARTS - 1) :]
    counted = sum(not spared(item.reason, recent[:index]) for index, item in enumerate(recent))
    wait = min(BASE_SECONDS * 2.0 ** min(len(recent) - 1, 16), MAX_SECONDS) * (1 + SPREAD * (2 * jitter - 1))
    not_before = parse_time(recent[-1].time) + wait if recent else now
    return Budget(not_before, counted >= recovery.max_restarts, recent)


def spared(reason: str, before: Sequence[Restart]) -> bool:
    """Whether a restart for this reason is not charged. A kubelet may turn a pod away because an old one of the unit
    has not given its chips back yet, so the first `AdmissionRejected` in a window is free."""
    rejected = any(item.reason == failure.ADMISSION_REJECTED for item in before)
    return reason in UNCOUNTED or (reason == failure.ADMISSION_REJECTED and not rejected)


def jitter(uid: str, incarnation: int) -> float:
    """A number from 0 to 1 that is the same for one wait of one unit, even after a restart of the operator."""
    return zlib.crc32(f"{uid}/{incarnation}".encode()) / 2**32


def without_failure(unit: UnitObserved, budget: Budget) -> UnitPlan | None:
    """The plan for a unit that needs an incarnation on new hosts though nothing failed; None if it needs none."""
    status = unit.status
    # The operator itself deleted the pods, so the next incarnation follows no failure.
    waited = find(status.conditions, "Scheduled").reason in (RUN_NOT_FOUND, NAMESPACE_LIMIT)
    inactive = status.phase in ("Suspended", "Finished") or waited
    failed = status.phase == "Failed"
    if status.incarnation == 0 or inactive or unit.spec_changed:
        if failed:  # the old spec failed: the new one has the whole budget
            status = status.model_copy(update={"restarts": ()})
        return raise_incarnation(unit, status)
    if failed:  # the budget was raised
        return raise_incarnation(unit, charged(unit, status, budget, last_reason(status)))
    # The syncer may know a later incarnation of an earlier unit of this name. Then it fences this one.
    return raise_incarnation(unit, status) if unit.known_incarnation > status.incarnation else None


def after_failure(
    unit: UnitObserved, cause: Cause, action: Action, replaced: int, budget: Budget
) -> UnitPlan:
    """The current incarnation is lost, and the unit needs this `action`; `replaced` slots need another pod."""
    status = failing(unit, cause)
    notice = Notice("Warning", cause.reason, cause.text, f"{unit.status.incarnation}")
    if budget.exhausted and not spared(cause.reason, budget.recent):
        return _give_up(unit, status, notice, budget)
    if budget.not_before > unit.now:
        message = f"{cause.reason}: {cause.message}; tries again at {format_time(budget.not_before)}"
        states = lost(BACK_OFF, message)
        # Whether the hosts had met: if not, a pod that is missing later is created at once.
        states["Seeded"] = states_of(unit.status.conditions).get("Seeded", states["Seeded"])
        status = unit.written(status, "Healing", message, states)
        return UnitPlan(status=status, notices=(notice,), wake=budget.not_before)
    action = action if _may_stay(unit) else Action.LEAVE_PLACE
    stays = action < Action.LEAVE_PLACE
    how = {"in_place": stays, "replaced": replaced if stays else 0, "avoid": _suspects(unit, cause)}
    status = charged(unit, status, budget, cause.reason, **how)
    plan = raise_incarnation(unit, status, action, replaced)
    return replace(plan, notices=(notice, *plan.notices))


def for_capacity(unit: UnitObserved, why: str, budget: Budget) -> UnitPlan:
    """There is no room at the unit's place. Nothing failed, so only the back-off counts this move."""
    restart = Restart(time=format_time(unit.now), reason=CAPACITY_UNAVAILABLE)
    plan = raise_incarnation(unit, unit.status.model_copy(update={"restarts": (*budget.recent, restart)}))
    message = f"looks for another place: {why}"
    notice = Notice("Normal", CAPACITY_UNAVAILABLE, message, f"{unit.status.placement}")
    return replace(plan, notices=(notice,), needs_fresh_list=True)


def with_first(unit: UnitObserved) -> UnitObserved:
    """The unit. A new one of a run is in its first incarnation before that is stored: it follows from the spec alone,
    unless the spec has changed, the unit was stopped, or the syncer knows its name. Then one is stored first."""
    new = unit.owned and unit.generation == 1 and unit.known_incarnation <= (1 if unit.pods else 0)
    if unit.status.incarnation or not new:
        return unit
    first = {"incarnation": 1, "placement": 1, "chips": unit.chips, "observed_generation": 1}
    return replace(unit, status=unit.status.model_copy(update=first))


def raise_incarnation(
    unit: UnitObserved, status: LearnerUnitStatus, action: Action = Action.LEAVE_PLACE, replaced: int = 0
) -> UnitPlan:
    """Raise the incarnation above ours, and above any that the syncer knows of a unit of this name."""
    incarnation = max(status.incarnation, unit.known_incarnation) + 1
    stays, healing = action < Action.LEAVE_PLACE, status.heal_start_time is not None
    reason = "SpecChanged" if status.incarnation and unit.spec_changed else "Created"
    reason = status.last_failure.reason if healing and status.last_failure else reason
    more = f"; {replaced} pods are replaced" if replaced else ""
    how = f"restarts in place{more}" if stays else "is given new hosts"
    message = f"{reason}: incarnation {incarnation} {how}"
    states = lost("Restarting" if stays else "Creating", message)
    states["Healing"] = state(healing, reason, message if healing else "")
    if action is Action.RESTART_PROCESS:
        states["Scheduled"] = state(True, "Scheduled")
    placement, nothing = status.placement if stays else incarnation, {"seeded_step": None, "contributions": 0}
    update = {"incarnation": incarnation, "placement": placement, "chips": unit.chips, **nothing}
    status = status.model_copy(update=update)
    status = unit.written(status, "Healing" if healing else "Pending", message, states)
    notice = Notice("Normal", "RestartInPlace" if stays else "NewGang", message, f"{incarnation}")
    return UnitPlan(status=status, advance=True, notices=(notice,) if healing else ())


def noted(unit: UnitObserved) -> Cause | None:
    """The failure for which the unit is in back-off. What is seen of it later may say less, because pods are gone."""
    known = unit.status.last_failure
    if known is None or find(unit.status.conditions, "Healing").reason != BACK_OFF:
        return None
    same = {name: getattr(known, name) for name in ("reason", "message", "pod", "node", "exit_code")}
    final = known.exit_code in (EXIT_FENCED, EXIT_TERMINAL) or known.reason in failure.OF_HOSTS
    action = Action.LEAVE_PLACE if final else Action.SERVING
    return Cause(**same, time=parse_time(known.time), action=action)


def failing(unit: UnitObserved, cause: Cause) -> LearnerUnitStatus:
    """The status with this failure, and the time at which the heal began."""
    old, moment, known = unit.status, cause.time or unit.now, noted(unit)
    update: dict[str, object] = {}
    if known is None or (known.pod, known.reason) != (cause.pod, cause.reason):
        same = {name: getattr(cause, name) for name in ("reason", "pod", "node", "exit_code")}
        update["last_failure"] = Failure(**same, message=clip(cause.message), time=format_time(moment))
    if old.heal_start_time is None:
        update |= {"heal_start_time": format_time(min(moment, unit.now)), "heal_reason": cause.reason}
    return old.model_copy(update=update)


def _suspects(unit: UnitObserved, cause: Cause) -> tuple[str, ...]:
    """Where the unit may not come back after this; see `Restart.avoid`."""
    several, placement = unit.slice.hosts > 1, unit.status.placement
    pods = [pod for pod in unit.pods if cause.reason == SUSPECT and pod.placement == placement]
    found = {unit.pool_of(pod) if several else pod.node for pod in pods}
    return tuple(sorted(found - {""}))


def _may_stay(unit: UnitObserved) -> bool:
    """Whether the unit may restart on its hosts once more."""
    status, now, remembered = unit.status, unit.now, 0
    for restart in reversed(status.restarts):  # each renews the kubelets' memory
        time = parse_time(restart.time)
        if not restart.in_place or now - time > KUBELET_MEMORY_SECONDS:
            break
        remembered, now = remembered + 1, time
    without_merge = status.incarnation - max(status.placement, status.merged_incarnation)
    return unit.recovery.in_place and max(without_merge, remembered) < LIMIT


def charged(
    unit: UnitObserved, status: LearnerUnitStatus, budget: Budget, reason: str, **how: Any
) -> LearnerUnitStatus:
    restarts = (*budget.recent, Restart(time=format_time(unit.now), reason=reason, **how))
    return status.model_copy(update={"restarts": restarts, "restart_count": status.restart_count + 1})


def _give_up(unit: UnitObserved, status: LearnerUnitStatus, notice: Notice, budget: Budget) -> UnitPlan:
    """No more tries. The failed unit is kept for inspection; its running pods are deleted."""
    message = (
        f"{unit.recovery.max_restarts} restarts within {unit.recovery.window_seconds} s are the limit; "
        f"last failure: {notice.reason}: {notice.message}. Delete this LearnerUnit to try again"
    )
    states = lost(BUDGET_EXHAUSTED, message) | {"Healing": state(False, BUDGET_EXHAUSTED, message)}
    status, _ = ended_heal(status, unit.now)
    status = status.model_copy(update={"restarts": budget.recent})
    status = unit.written(status, "Failed", message, states)
    end = Notice("Warning", BUDGET_EXHAUSTED, message, f"{status.incarnation}")
    return UnitPlan(status=status, advance=True, notices=(notice, end))
