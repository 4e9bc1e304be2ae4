"""What to do for one LearnerUnit: which pods to make, which to remove, when to go to the next incarnation.

The order of writes makes a crash between any two harmless: the new incarnation is in the status before a pod of the old
one is deleted, and `placedIncarnation` follows only when all pods of the new one exist. Before that a missing pod is
work not done; after it, a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import Failure, LearnerUnitStatus, Restart, UnitPhase
from atoll_operator.plan import budget, failure
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import clip, find, is_true, state, transition
from atoll_operator.plan.failure import Cause
from atoll_operator.plan.gang import Gang
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.observe import PodView
from atoll_operator.plan.unitstatus import Orders, UnitObserved, describe, lost, with_ledger, written

EXIT_GRACE_SECONDS = 15.0
"""A pod that ends with 0 may have heard of the run's end before we did."""
STUCK_SECONDS = 30.0
"""After its deletion time a pod of a lost node is removed by force; incarnations fence whatever may still run."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod to delete."""

    name: str
    uid: str
    grace_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """What to do. With `advance` nothing but the status is written, guarded, and the next plan acts on it."""

    status: LearnerUnitStatus
    advance: bool = False
    service: Object | None = None
    create: tuple[Object, ...] = ()
    remove: tuple[Removal, ...] = ()
    notices: tuple[Notice, ...] = ()
    wake: float | None = None
    """Unix seconds of the next look without an event."""
    healed_seconds: float | None = None
    """Of a heal that this plan sees completed."""


def plan_unit(unit: UnitObserved, now: float) -> UnitPlan:
    """Decides for one unit."""
    if unit.orders is None:
        return _idle(unit, now, "Pending", "RunNotFound", f"there is no TrainingRun {unit.spec.run!r}")
    if unit.orders.stop:
        return _stopped(unit, unit.orders.stop, now)
    if unit.status.phase == "Failed":
        return _failed(unit, unit.status, now)
    try:
        gang = _gang(unit, unit.orders, unit.status.incarnation)
        gang.names()
    except ValueError as error:
        return _idle(unit, now, "Pending", "SpecInvalid", str(error))
    if unit.status.incarnation == 0 or unit.status.phase == "Suspended":
        return _advance(unit, unit.status, now)
    current = {pod.name: pod for pod in unit.pods if pod.incarnation == unit.status.incarnation}
    missing = tuple(name for name in gang.names() if name not in current)
    placed = unit.status.placed_incarnation == unit.status.incarnation
    cause, wake = _cause(unit, unit.orders, current, missing if placed else (), now)
    if cause is not None:
        return _heal(unit, unit.orders, cause, now)
    status = unit.status
    if not placed and not missing:
        status = status.model_copy(update={"placed_incarnation": status.incarnation})
    stale = tuple(pod for pod in unit.pods if pod.incarnation != unit.status.incarnation)
    remove, stuck = _removals(stale, 1, now)
    status, healed, notices = describe(unit, gang, status, current, missing, now)
    return UnitPlan(
        status=status,
        service=gang.service(),
        create=tuple(pod for pod in gang.pods() if pod["metadata"]["name"] in missing),
        remove=remove,
        notices=notices,
        wake=_earliest(wake, stuck),
        healed_seconds=healed,
    )


def _gang(unit: UnitObserved, orders: Orders, incarnation: int) -> Gang:
    return Gang(
        namespace=unit.namespace,
        unit=unit.name,
        uid=unit.uid,
        incarnation=incarnation,
        spec=unit.spec,
        settings=orders.settings,
    )


def _cause(
    unit: UnitObserved, orders: Orders, current: Mapping[str, PodView], missing: tuple[str, ...], now: float
) -> tuple[Cause | None, float | None]:
    """Why the current gang is lost, and when to look again."""
    pods, wake = [], None
    for pod in current.values():
        if pod.exit_code == 0 and pod.ended and pod.deletion_time is None:
            patient = (pod.finished_at or now) + EXIT_GRACE_SECONDS
            if orders.finishing or patient > now:
                wake = None if orders.finishing else _earliest(wake, patient)
                continue
        pods.append(pod)
    if orders.finishing:
        return None, None
    cause = failure.first_cause(pods, missing)
    if cause is not None:
        return cause, None
    deadline = _startup_deadline(unit, orders, current)
    if deadline is None:
        return None, wake
    if deadline > now:
        return None, _earliest(wake, deadline)
    message = f"not all hosts were connected to the syncer {orders.recovery.startup_seconds} s after the pods started"
    return Cause(failure.STARTUP_TIMED_OUT, message, min(current)), None


def _startup_deadline(unit: UnitObserved, orders: Orders, current: Mapping[str, PodView]) -> float | None:
    """None while pods have yet to start, while the syncer does not answer, and once all hosts were connected."""
    started = [pod.started_at for pod in current.values()]
    if unit.answering_since is None or not started or any(moment is None for moment in started):
        return None
    report = unit.report
    if is_true(unit.status.conditions, "Seeded") or (
        report is not None and report.incarnation == unit.status.incarnation and report.hosts >= len(current)
    ):
        return None
    return (
        max(unit.answering_since, *(moment for moment in started if moment)) + orders.recovery.startup_seconds
    )


def _heal(unit: UnitObserved, orders: Orders, cause: Cause, now: float) -> UnitPlan:
    """The gang is lost: the next incarnation at once, after a back-off, or never."""
    old = unit.status
    known = old.last_failure
    if known is None or (known.pod, known.reason) != (cause.pod, cause.reason):
        known = Failure(
            reason=cause.reason,
            message=clip(cause.message),
            pod=cause.pod,
            node=cause.node,
            exit_code=cause.exit_code,
            time=format_time(cause.time or now),
        )
    started = old.heal_start_time or format_time(min(cause.time or now, now))
    status = old.model_copy(update={"last_failure": known, "heal_start_time": started})
    notice = Notice("Warning", cause.reason, f"{cause.pod}: {cause.message}", f"{old.incarnation}")
    verdict = budget.judge(old.restarts, orders.recovery, now)
    if verdict.exhausted:
        return _exhausted(unit, orders, status, notice, now)
    if verdict.not_before > now:
        until = format_time(verdict.not_before)
        message = f"{cause.reason}: {cause.message}; tries again at {until}"
        status = written(unit, status, "Healing", message, lost("BackOff", message), now)
        return UnitPlan(status=status, notices=(notice,), wake=verdict.not_before)
    restart = Restart(time=format_time(now), reason=cause.reason)
    status = status.model_copy(
        update={"restarts": (*verdict.recent, restart), "restart_count": old.restart_count + 1}
    )
    plan = _advance(unit, status, now)
    return UnitPlan(status=plan.status, advance=True, notices=(notice,))


def _advance(unit: UnitObserved, status: LearnerUnitStatus, now: float) -> UnitPlan:
    """To the next incarnation: above ours, and above any that the syncer has seen of a unit of this name."""
    seen = unit.report.incarnation if unit.report is not None else 0
    incarnation = max(status.incarnation, seen) + 1
    healing = status.heal_start_time is not None
    reason = status.last_failure.reason if healing and status.last_failure else "Created"
    message = f"{reason}: incarnation {incarnation} is being created"
    status = status.model_copy(update={"incarnation": incarnation, "seeded_step": None, "contributions": 0})
    states = lost("Creating", message) | {"Healing": state(healing, reason, message if healing else "")}
    status = written(unit, status, "Healing" if healing else "Pending", message, states, now)
    return UnitPlan(status=status, advance=True)


def _exhausted(
    unit: UnitObserved, orders: Orders, status: LearnerUnitStatus, notice: Notice, now: float
) -> UnitPlan:
    """No more tries; the failed unit is kept to be looked at, its pods are not."""
    reason = "RestartBudgetExhausted"
    message = (
        f"{len(status.restarts)} re-creations within {orders.recovery.window_seconds} s are the limit; last failure: "
        f"{notice.reason}: {notice.message}. Delete this LearnerUnit to try again"
    )
    states = lost(reason, message) | {"Healing": state(False, reason, message)}
    status = status.model_copy(update={"heal_start_time": None})
    status = written(unit, status, "Failed", message, states, now)
    return UnitPlan(
        status=status,
        advance=True,
        notices=(notice, Notice("Warning", reason, message, f"{status.incarnation}")),
    )


def _failed(unit: UnitObserved, status: LearnerUnitStatus, now: float) -> UnitPlan:
    remove, wake = _removals(tuple(pod for pod in unit.pods if not pod.ended), 1, now)
    return UnitPlan(status=status, remove=remove, wake=wake)


def _stopped(unit: UnitObserved, phase: Literal["Suspended", "Finished"], now: float) -> UnitPlan:
    """Suspended or finished: no pods, the figures stay."""
    remove, wake = _removals(unit.pods, 30 if phase == "Suspended" else 5, now)
    if unit.status.phase == "Failed":
        return UnitPlan(status=unit.status, remove=remove, wake=wake)
    status = with_ledger(unit, unit.status).model_copy(
        update={"heal_start_time": None, "placed_incarnation": 0}
    )
    seeded = find(unit.status.conditions, "Seeded")
    states = {
        "Scheduled": state(False, phase),
        "PodsReady": state(False, phase),
        "Seeded": (seeded.status, seeded.reason, seeded.message) if seeded else state(False, phase),
        "Learning": state(False, phase),
        "Healing": state(False, phase),
        "Draining": state(bool(unit.pods), "Stopping" if unit.pods else phase),
    }
    status = written(unit, status, phase, "", states, now)
    return UnitPlan(status=status, remove=remove, wake=wake)


def _idle(unit: UnitObserved, now: float, phase: UnitPhase, reason: str, message: str) -> UnitPlan:
    states = lost(reason, message) | {"Healing": state(False, reason)}
    states["Scheduled"] = state(False, reason, message)
    return UnitPlan(status=written(unit, unit.status, phase, message, states, now))


def _removals(pods: tuple[PodView, ...], grace: int, now: float) -> tuple[tuple[Removal, ...], float | None]:
    """Each pod once, and by force when it is stuck; and when the next one may be stuck."""
    remove: list[Removal] = []
    wake: float | None = None
    for pod in pods:
        if pod.deletion_time is None:
            remove.append(Removal(pod.name, pod.uid, 0 if pod.ended else grace))
        elif pod.deletion_time + STUCK_SECONDS <= now:
            remove.append(Removal(pod.name, pod.uid, 0))
        else:
            wake = _earliest(wake, pod.deletion_time + STUCK_SECONDS)
    return tuple(remove), wake


def _earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def refused(plan: UnitPlan, message: str, now: float) -> UnitPlan:
    """The same plan, with a status that says why the API server does not take our objects."""
    states = {item.type: (item.status, item.reason, item.message) for item in plan.status.conditions}
    states["Scheduled"] = state(False, "ObjectRefused", message)
    status = plan.status
    conditions = transition(status.conditions, states, status.observed_generation, now)
    return replace(
        plan, status=status.model_copy(update={"message": clip(message), "conditions": conditions})
    )
