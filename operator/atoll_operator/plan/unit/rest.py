"""A unit that has no gang: it cannot have one, it has failed for good, or its run is suspended or over."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from atoll_operator.api.learnerunit import LearnerUnitStatus, UnitPhase
from atoll_operator.plan import nodes
from atoll_operator.plan.clock import earliest
from atoll_operator.plan.conditions import find, state
from atoll_operator.plan.removal import DRAIN_SECONDS, removals
from atoll_operator.plan.unit import heal
from atoll_operator.plan.unit.status import Orders, UnitObserved, lost, with_ledger, written
from atoll_operator.plan.unit.unitplan import UnitPlan

GRACE_SECONDS = {"Suspended": DRAIN_SECONDS, "Finished": 5}
"""For the pods of a run that stops, and of one that is over."""
RUN_NOT_FOUND = "RunNotFound"


def idle(unit: UnitObserved, now: float, phase: UnitPhase, reason: str, message: str) -> UnitPlan:
    """Nothing is made and nothing removed."""
    states = lost(reason, message) | {"Healing": state(False, reason)}
    states["Scheduled"] = state(False, reason, message)
    return UnitPlan(status=written(unit, unit.status, phase, message, states, now))


def without_run(unit: UnitObserved, now: float) -> UnitPlan:
    """Its run is gone, or still to come. A unit made by hand outlives its run, and its pods would train for nobody."""
    remove, wake = removals(unit.pods, GRACE_SECONDS["Suspended"], False, now)
    message = f"there is no TrainingRun {unit.spec.run!r}"
    plan = idle(replace(unit, status=_without_gang(unit.status, now)), now, "Pending", RUN_NOT_FOUND, message)
    return replace(plan, remove=remove, wake=wake)


def rested(status: LearnerUnitStatus) -> bool:
    """Whether we took the gang away ourselves, so that the next one follows no failure."""
    scheduled = find(status.conditions, "Scheduled")
    return status.phase in ("Suspended", "Finished") or (
        scheduled is not None and scheduled.reason == RUN_NOT_FOUND
    )


def _without_gang(status: LearnerUnitStatus, now: float) -> LearnerUnitStatus:
    return heal.ended(status, now).model_copy(update={"placed_gang": 0})


def failed(unit: UnitObserved, orders: Orders, now: float) -> UnitPlan:
    """The failed unit is kept to be looked at, with the pods that ended."""
    running = tuple(pod for pod in unit.pods if not pod.ended)
    remove, wake = removals(running, 1, orders.recovery.force_delete, now)
    return UnitPlan(status=unit.status, remove=remove, wake=wake)


def stopped(
    unit: UnitObserved, orders: Orders, phase: Literal["Suspended", "Finished"], now: float
) -> UnitPlan:
    """Suspended or finished: no pods, the figures stay. Nobody waits for the pods of a lost node to go."""
    remove, wake = removals(unit.pods, GRACE_SECONDS[phase], orders.recovery.force_delete, now)
    silent, suspicion = nodes.lost(unit.pods, unit.nodes, orders.recovery.node_lost_seconds, now)
    staying = {pod.name for pod in unit.pods} - {cause.pod for cause in silent}
    if unit.status.phase == "Failed":
        return UnitPlan(status=unit.status, remove=remove, wake=wake)
    status = _without_gang(with_ledger(unit, unit.status), now)
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
