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
from atoll_operator.api.learnerunit import Failure, LearnerUnitSpec, LearnerUnitStatus, Restart, UnitPhase
from atoll_operator.api.trainingrun import RecoverySpec
from atoll_operator.plan import budget, failure
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import State, clip, find, is_true, state, transition
from atoll_operator.plan.failure import Cause
from atoll_operator.plan.gang import Gang
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.observe import PodView
from atoll_operator.plan.podspec import PodSettings
from atoll_runtime.contract import UnitReport

EXIT_GRACE_SECONDS = 15.0
"""A pod that ends with 0 may have heard of the run's end before we did."""
STUCK_SECONDS = 30.0
"""After its deletion time a pod of a lost node is removed by force; incarnations fence whatever may still run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the run wants of its units."""

    stop: Literal["", "Suspended", "Finished"]
    finishing: bool
    """The target is reached: pods may end with 0."""
    recovery: RecoverySpec
    settings: PodSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitObserved:
    """One unit as it is."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: LearnerUnitSpec
    status: LearnerUnitStatus
    pods: tuple[PodView, ...]
    """Those that this unit owns, of any incarnation."""
    orders: Orders | None
    """None when there is no such run."""
    report: UnitReport | None = None
    """The syncer's, None when it knows no such unit or does not answer."""
    answering_since: float | None = None
    """Unix seconds since which the syncer answers; None while it does not."""


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
    status, healed, notices = _observe(unit, gang, status, current, missing, now)
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
        status = _write(unit, status, "Healing", message, _lost("BackOff", message), now)
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
    states = _lost("Creating", message) | {"Healing": state(healing, reason, message if healing else "")}
    status = _write(unit, status, "Healing" if healing else "Pending", message, states, now)
    return UnitPlan(status=status, advance=True)


def _lost(reason: str, message: str) -> dict[str, State]:
    return {
        "Scheduled": state(False, reason),
        "PodsReady": state(False, reason),
        "Seeded": state(False, reason),
        "Learning": state(False, reason),
        "Healing": state(True, reason, message),
        "Draining": state(False, "NotDraining"),
    }


def _exhausted(
    unit: UnitObserved, orders: Orders, status: LearnerUnitStatus, notice: Notice, now: float
) -> UnitPlan:
    """No more tries; the failed unit is kept to be looked at, its pods are not."""
    reason = "RestartBudgetExhausted"
    message = (
        f"{len(status.restarts)} re-creations within {orders.recovery.window_seconds} s are the limit; last failure: "
        f"{notice.reason}: {notice.message}. Delete this LearnerUnit to try again"
    )
    states = _lost(reason, message) | {"Healing": state(False, reason, message)}
    status = status.model_copy(update={"heal_start_time": None})
    status = _write(unit, status, "Failed", message, states, now)
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
    status = unit.status.model_copy(update={"heal_start_time": None, "placed_incarnation": 0})
    seeded = find(unit.status.conditions, "Seeded")
    states = {
        "Scheduled": state(False, phase),
        "PodsReady": state(False, phase),
        "Seeded": (seeded.status, seeded.reason, seeded.message) if seeded else state(False, phase),
        "Learning": state(False, phase),
        "Healing": state(False, phase),
        "Draining": state(bool(unit.pods), "Stopping" if unit.pods else phase),
    }
    status = _write(unit, status, phase, "", states, now)
    return UnitPlan(status=status, remove=remove, wake=wake)


def _idle(unit: UnitObserved, now: float, phase: UnitPhase, reason: str, message: str) -> UnitPlan:
    states = _lost(reason, message) | {"Healing": state(False, reason)}
    states["Scheduled"] = state(False, reason, message)
    return UnitPlan(status=_write(unit, unit.status, phase, message, states, now))


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


def _observe(
    unit: UnitObserved,
    gang: Gang,
    status: LearnerUnitStatus,
    current: Mapping[str, PodView],
    missing: tuple[str, ...],
    now: float,
) -> tuple[LearnerUnitStatus, float | None, tuple[Notice, ...]]:
    """The status of a gang that is not lost; the seconds of a heal that is done now."""
    pods = tuple(current.values())
    hosts = len(gang.names())
    waiting = failure.waiting(pods)
    scheduled = not missing and all(pod.node for pod in pods)
    ready = scheduled and all(pod.ready for pod in pods)
    blocked = waiting or ("PodsStarting", f"{sum(pod.ready for pod in pods)} of {hosts} pods are ready")
    states: dict[str, State] = {
        "Scheduled": state(True, "Scheduled")
        if scheduled
        else state(
            False,
            *(waiting or ("Placing", f"{sum(bool(pod.node) for pod in pods)} of {hosts} pods have a node")),
        ),
        "PodsReady": state(True, "PodsReady") if ready else state(False, *blocked),
        **_progress(unit),
        "Draining": state(False, "NotDraining"),
    }
    status = _figures(status, unit.report)
    learning = states["Learning"][0] == "True"
    healed: float | None = None
    notices: tuple[Notice, ...] = ()
    if learning and status.heal_start_time is not None:
        merged = unit.report.first_merge_time if unit.report is not None else None
        healed = round(max((merged or now) - parse_time(status.heal_start_time), 0.0), 2)
        status = status.model_copy(update={"last_heal_seconds": healed, "heal_start_time": None})
        told = f"incarnation {status.incarnation} was merged {healed:.1f} s after the failure"
        notices = (Notice("Normal", "Healed", told, f"{status.incarnation}"),)
    healing = status.heal_start_time is not None
    cause = status.last_failure
    why = f"{cause.reason}: {cause.message}" if cause is not None else ""
    states["Healing"] = (
        state(True, cause.reason if cause else "Lost", why) if healing else state(False, "NotHealing")
    )
    phase: UnitPhase = (
        "Learning"
        if learning
        else "Healing"
        if healing
        else "Joining"
        if ready
        else "Starting"
        if scheduled
        else "Scheduling"
    )
    message = "" if learning else next((text for _, _, text in states.values() if text), "")
    return _write(unit, status, phase, message, states, now), healed, notices


def _progress(unit: UnitObserved) -> dict[str, State]:
    """`Seeded` and `Learning`; what was last known, while the syncer does not answer: the unit trains on."""
    report = unit.report
    if report is None or report.incarnation != unit.status.incarnation:
        if unit.answering_since is None:
            return {name: _last_known(unit, name) for name in ("Seeded", "Learning")}
        message = "the syncer has not heard of this incarnation yet"
        return {name: state(False, "NotConnected", message) for name in ("Seeded", "Learning")}
    if report.seeded_step is None:
        seeded = state(False, "Seeding", report.seed_message)
    else:
        text = f"from the global checkpoint of step {report.seeded_step}"
        seeded = state(True, "Checkpoint", f"{text}; {report.seed_message}" if report.seed_message else text)
    if report.state == "Learning":
        return {
            "Seeded": seeded,
            "Learning": state(True, "Merged", f"{report.contributions} contributions merged"),
        }
    if report.state == "Gone":
        return {
            "Seeded": seeded,
            "Learning": state(False, "Disconnected", "no host is connected to the syncer"),
        }
    return {"Seeded": seeded, "Learning": state(False, "Joining", f"{report.hosts} hosts are connected")}


def _last_known(unit: UnitObserved, name: str) -> State:
    known = find(unit.status.conditions, name)
    if known is None:
        return state(False, "SyncerUnavailable", "the syncer does not answer yet")
    return known.status, known.reason, known.message


def _figures(status: LearnerUnitStatus, report: UnitReport | None) -> LearnerUnitStatus:
    if report is None:
        return status
    figures: dict[str, object] = {"tokens": report.tokens}
    if report.incarnation == status.incarnation:
        figures |= {
            "step": report.step,
            "loss": status.loss if report.loss is None else round(report.loss, 4),
            "tokens_per_second": round(report.tokens_per_second, 1),
            "staleness": report.staleness,
            "contributions": report.contributions,
            "seeded_step": report.seeded_step,
        }
    return status.model_copy(update=figures)


def _write(
    unit: UnitObserved,
    status: LearnerUnitStatus,
    phase: UnitPhase,
    message: str,
    states: Mapping[str, State],
    now: float,
) -> LearnerUnitStatus:
    return status.model_copy(
        update={
            "phase": phase,
            "message": clip(message),
            "conditions": transition(unit.status.conditions, states, unit.generation, now),
            "observed_generation": unit.generation,
        }
    )


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
