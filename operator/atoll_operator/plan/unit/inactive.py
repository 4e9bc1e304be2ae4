"""A unit that has no pods, or keeps what it has: there is no run, the run stops, the unit failed for good, its spec is
invalid, or the syncer has to answer first."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from atoll_operator.api.learnerunit import LearnerUnitStatus, UnitPhase
from atoll_operator.plan import nodes
from atoll_operator.plan.clock import earliest, parse_time
from atoll_operator.plan.conditions import find, state
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.removal import DRAIN_SECONDS, removals
from atoll_operator.plan.unit import budget, heal
from atoll_operator.plan.unit.observed import Orders, UnitObserved
from atoll_operator.plan.unit.status import lost, with_ledger, written
from atoll_operator.plan.unit.unitplan import UnitPlan
from atoll_operator.plan.unit.witnesses import AGAIN_SECONDS

GRACE_SECONDS = {"Suspended": DRAIN_SECONDS, "Finished": 5}
"""For the pods of a run that is suspended, and of one that is over."""
RUN_NOT_FOUND = "RunNotFound"


def was_inactive(status: LearnerUnitStatus) -> bool:
    """Whether the operator itself took the pods away, so that the next incarnation follows no failure."""
    scheduled = find(status.conditions, "Scheduled")
    return status.phase in ("Suspended", "Finished") or (
        scheduled is not None and scheduled.reason == RUN_NOT_FOUND
    )


def inactive(unit: UnitObserved, orders: Orders, gang: Gang, now: float) -> UnitPlan | None:
    """The plan for a unit that should do nothing; None if it should run."""
    if orders.stop:
        return _stopped(unit, orders, orders.stop, now)
    if unit.status.phase == "Failed" and not unit.spec_changed and not _allowed_more(unit, orders):
        running = tuple(pod for pod in unit.pods if not pod.ended)
        remove, wake = removals(running, 1, orders.recovery.force_delete, now)
        return UnitPlan(status=unit.status, remove=remove, wake=wake)
    try:
        gang.check()
    except ValueError as error:
        return idle(unit, now, "Pending", "SpecInvalid", str(error))
    heard = unit.report is not None or unit.answering_since is not None
    if unit.status.incarnation == 0 and orders.begun and not heard:
        why = "the syncer does not answer: it may know incarnations of an earlier unit of this name"
        # The syncer's answer wakes nobody for a unit that it does not know.
        return replace(idle(unit, now, "Pending", "SyncerUnavailable", why), wake=now + AGAIN_SECONDS)
    return None


def without_run(unit: UnitObserved, now: float) -> UnitPlan:
    """The run is gone, or not there yet. A unit made by hand outlives its run, and its pods would train for nobody."""
    remove, wake = removals(unit.pods, GRACE_SECONDS["Suspended"], False, now)
    message = f"there is no TrainingRun {unit.spec.run!r}"
    unit = replace(unit, status=heal.ended(unit.status, now))
    return replace(idle(unit, now, "Pending", RUN_NOT_FOUND, message), remove=remove, wake=wake)


def idle(unit: UnitObserved, now: float, phase: UnitPhase, reason: str, message: str) -> UnitPlan:
    """Nothing is created and nothing removed."""
    states = lost(reason, message) | {"Healing": state(False, reason)}
    states["Scheduled"] = state(False, reason, message)
    return UnitPlan(status=written(unit, unit.status, phase, message, states, now))


def _allowed_more(unit: UnitObserved, orders: Orders) -> bool:
    """Whether a unit was given up that would not have been under today's budget."""
    restarts = unit.status.restarts  # those of the window in which it was given up
    last = parse_time(restarts[-1].time) if restarts else 0.0
    return not budget.judge(restarts, orders.recovery, last, 0.0).exhausted


def _stopped(
    unit: UnitObserved, orders: Orders, phase: Literal["Suspended", "Finished"], now: float
) -> UnitPlan:
    """The pods go, the figures stay. Pods of a lost node are not waited for."""
    remove, wake = removals(unit.pods, GRACE_SECONDS[phase], orders.recovery.force_delete, now)
    if unit.status.phase == "Failed":
        return UnitPlan(status=unit.status, remove=remove, wake=wake)
    silent, suspicion = nodes.lost(unit.pods, unit.nodes, orders.recovery.node_lost_seconds, now)
    staying = {pod.name for pod in unit.pods} - {cause.pod for cause in silent}
    status = heal.ended(with_ledger(unit, unit.status), now)
    seeded = find(unit.status.conditions, "Seeded")
    states = {
        "Scheduled": state(False, phase),
        "PodsReady": state(False, phase),
        "Seeded": (seeded.status, seeded.reason, seeded.message) if seeded else state(False, phase),
        "Learning": state(False, phase),
        "Healing": state(False, phase),
        "Draining": state(bool(staying), "Stopping" if staying else phase),
    }
    status = written(unit, status, phase, "", states, now)
    return UnitPlan(status=status, remove=remove, wake=earliest(wake, suspicion))
