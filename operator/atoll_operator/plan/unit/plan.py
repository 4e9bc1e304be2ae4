"""What to do for one LearnerUnit in one pass: observe its slots, judge them, and then raise the incarnation or
reconcile each slot.

A crash between any two writes is harmless: the new incarnation is stored before a pod of the old one is touched, and
what a slot needs follows from the stored status and the pods alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll_operator.plan import nodes
from atoll_operator.plan.clock import earliest
from atoll_operator.plan.removal import DRAIN_SECONDS, removals
from atoll_operator.plan.unit import deadlines, drain, failure, inactive, incarnation, placement
from atoll_operator.plan.unit.failure import Action
from atoll_operator.plan.unit.placement import Members
from atoll_operator.plan.unit.slots import Slot, observe
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import Renewal, UnitObserved, UnitPlan


def plan_unit(unit: UnitObserved) -> UnitPlan:
    """Decide for one unit."""
    if (nothing := inactive.inactive(unit)) is not None:
        return nothing
    jitter = incarnation.jitter(unit.uid, unit.status.incarnation)
    budget = incarnation.budget_of(unit.status.restarts, unit.recovery, unit.now, jitter)
    if drain.under_way(unit):  # also if its spec has changed: its hosts are sound and end together
        return drain.carry_out(unit, budget)
    if (begun := incarnation.without_failure(unit, budget)) is not None:
        return begun

    slots = observe(unit)
    wake = earliest(*(slot.wake for slot in slots))
    pods = [slot.pod for slot in slots if slot.pod is not None]
    move = None if unit.finishing else nodes.leaving(pods, unit.nodes)
    cause = failure.first(slot.cause for slot in slots if slot.cause is not None)
    if cause is None and not unit.finishing:
        cause, deadline = deadlines.overdue(unit, slots)
        wake = earliest(wake, deadline)
    if cause is not None:
        if move is not None and cause.reason in (failure.POD_DELETED, failure.EVICTED):
            cause = move  # the platform was faster than the operator
        action = max(cause.action, *(slot.action for slot in slots))
        never = [slot for slot in slots if slot.pod is None and not unit.met]  # these were never created
        replaced = sum(slot.action is Action.REPLACE_POD for slot in slots) - len(never)
        plan = incarnation.after_failure(unit, cause, action, replaced, budget)
        return replace(plan, doubtful=unit.met and len(pods) < len(slots))
    if move is not None and drain.may_begin(unit, budget):
        return drain.begin(unit, move)
    members = _members(unit, slots)
    no_room, patience = placement.overdue(unit, members)
    if no_room and budget.not_before <= unit.now:
        return incarnation.for_capacity(unit, no_room, budget)
    later = budget.not_before if move is not None or no_room else None
    plan = _reconcile(unit, members)
    return replace(plan, wake=earliest(plan.wake, wake, patience, later))


def _members(unit: UnitObserved, slots: Sequence[Slot]) -> Members:
    there = [(slot.pod, slot.action is Action.REPLACE_POD) for slot in slots if slot.pod is not None]
    uids = {pod.uid for pod, _ in there}
    return Members(
        kept=tuple(pod for pod, replaced in there if not replaced),
        outgoing=tuple(pod for pod, replaced in there if replaced),
        stale=tuple(pod for pod in unit.pods if pod.uid not in uids),
    )


def _reconcile(unit: UnitObserved, members: Members) -> UnitPlan:
    """Bring each slot about by itself. A pod that is replaced keeps its chips and its DNS name until it has ended."""
    # Hosts of a failed unit wait for each other; pods that give way to a new spec end in peace.
    grace = DRAIN_SECONDS if unit.status.heal_start_time is None else 1
    old = (*members.outgoing, *members.stale)
    remove, stuck = removals(old, grace, unit.recovery.force_delete, unit.now)
    taken = {pod.host for pod in members.outgoing if not pod.ended}
    places = {host: where for host, where in placement.place(unit, members).items() if host not in taken}
    told = unit.status.incarnation
    return replace(
        describe(unit, members.kept),
        service=unit.gang.service(),
        create=() if unit.finishing else unit.gang.pods(places),
        remove=remove,
        renew=tuple(
            Renewal(pod.name, pod.uid, told)
            for pod in members.kept
            if pod.incarnation < told and not pod.leaves
        ),
        wake=stuck,
    )
