"""A unit that gets no new pods: there is no run, the run stops, the unit is `Failed`, a limit keeps it waiting, its
spec is invalid, or the syncer has to answer first."""

from __future__ import annotations

from dataclasses import replace

from atoll_operator.plan import nodes
from atoll_operator.plan.conditions import earliest, parse_time, state, states_of
from atoll_operator.plan.limits import LOOK_SECONDS, NAMESPACE_LIMIT
from atoll_operator.plan.pods.template import DRAIN_SECONDS
from atoll_operator.plan.pods.topology import slice_of
from atoll_operator.plan.pods.view import removals
from atoll_operator.plan.unit.deadlines import AGAIN_SECONDS
from atoll_operator.plan.unit.incarnation import budget_of
from atoll_operator.plan.unit.status import ended_heal, with_ledger
from atoll_operator.plan.unit.unit import RUN_NOT_FOUND, UnitObserved, UnitPlan, lost

GRACE_SECONDS = {"Suspended": DRAIN_SECONDS, "Finished": 5}
"""Grace period for the pods of a run that is suspended, and of one that is over."""


def inactive(unit: UnitObserved) -> UnitPlan | None:
    """The plan for a unit that should do nothing; None if it should run."""
    if unit.stop == RUN_NOT_FOUND:  # a unit made by hand outlives its run, but its pods would be of no use
        remove, wake = removals(unit.pods, DRAIN_SECONDS, False, unit.now)
        unit = replace(unit, status=ended_heal(unit.status, unit.now)[0])
        plan = _idle(unit, RUN_NOT_FOUND, f"there is no TrainingRun {unit.spec.run!r}")
        return replace(plan, remove=remove, wake=wake)
    if unit.stop:
        return _stopped(unit)
    if unit.status.phase == "Failed" and not unit.spec_changed and not _allowed_more(unit):
        running = tuple(pod for pod in unit.pods if not pod.ended)
        remove, wake = removals(running, 1, unit.recovery.force_delete, unit.now)
        return UnitPlan(status=unit.status, remove=remove, wake=wake)
    if unit.waits:
        return replace(_idle(unit, NAMESPACE_LIMIT, unit.waits), wake=unit.now + LOOK_SECONDS)
    try:
        slice_of(unit.spec.accelerator, unit.spec.topology, unit.spec.machine_type)
    except ValueError as error:
        return _idle(unit, "SpecInvalid", str(error))
    silent = unit.report is None and unit.syncer.serving_since is None
    if unit.status.incarnation == 0 and unit.begun and silent:
        why = "the syncer does not answer: it may know incarnations of an earlier unit of this name"
        # The syncer's answer enqueues no unit that the syncer does not know.
        return replace(_idle(unit, "SyncerUnavailable", why), wake=unit.now + AGAIN_SECONDS)
    return None


def _idle(unit: UnitObserved, reason: str, message: str) -> UnitPlan:
    """Nothing is created and nothing removed."""
    states = lost(reason, message) | {"Healing": state(False, reason)}
    states["Scheduled"] = state(False, reason, message)
    return UnitPlan(status=unit.written(unit.status, "Pending", message, states))


def _allowed_more(unit: UnitObserved) -> bool:
    """Whether a unit that was given up could restart under the present budget."""
    restarts = unit.status.restarts  # those of the window in which it was given up
    last = parse_time(restarts[-1].time) if restarts else 0.0
    return not budget_of(restarts, unit.recovery, last, 0.0).exhausted


def _stopped(unit: UnitObserved) -> UnitPlan:
    """The pods are deleted and the figures stay. The unit does not wait for pods of a lost node."""
    phase, recovery, now = unit.stop, unit.recovery, unit.now
    assert phase in ("Suspended", "Finished")
    remove, wake = removals(unit.pods, GRACE_SECONDS[phase], recovery.force_delete, now)
    if unit.status.phase == "Failed":
        return UnitPlan(status=unit.status, remove=remove, wake=wake)
    left = [pod for pod in unit.pods if not pod.ended]  # a finalizer may keep the others
    found = [nodes.lost(pod, unit.nodes.get(pod.node), recovery.node_lost_seconds, now) for pod in left]
    draining = any(cause is None for cause, _ in found)
    states = dict.fromkeys(("Scheduled", "PodsReady", "Seeded", "Learning", "Healing"), state(False, phase))
    states["Seeded"] = states_of(unit.status.conditions).get("Seeded", states["Seeded"])
    states["Draining"] = state(draining, "Stopping" if draining else phase)
    status = unit.written(ended_heal(with_ledger(unit), now)[0], phase, "", states)
    return UnitPlan(status=status, remove=remove, wake=earliest(wake, *(check for _, check in found)))
