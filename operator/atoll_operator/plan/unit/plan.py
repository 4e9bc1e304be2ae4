"""What to do for one LearnerUnit in one pass: judge its hosts, one slot each, and then raise the incarnation or
reconcile each slot (docs/healing.md has the table). A slot with a cause needs a new incarnation of the unit, which is
stored first. The next pass reconciles the slot without another charge, because its pod never ran the new incarnation.
A crash between any two writes is harmless: what a slot needs follows from the stored status and the pods alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from atoll_operator.plan import nodes
from atoll_operator.plan.conditions import earliest
from atoll_operator.plan.pods import gang
from atoll_operator.plan.pods.names import pod_name
from atoll_operator.plan.pods.template import DRAIN_SECONDS
from atoll_operator.plan.pods.view import Pods, PodView, removals
from atoll_operator.plan.unit import deadlines, drain, failure, inactive, incarnation, placement
from atoll_operator.plan.unit.failure import POD_DELETED, Action, Cause, classify
from atoll_operator.plan.unit.unit import UnitObserved, UnitPlan

EXIT_GRACE_SECONDS = 15.0
"""How long exit status 0 is no failure: the pod may have learned of the run's end before the operator did."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One host of a unit, and what it needs."""

    pod: PodView | None
    """The newest pod of this host in this placement: its member of the mesh."""
    action: Action
    cause: Cause | None = None
    """Why the incarnation is lost with this slot. Without a cause `REPLACE_POD` needs no new incarnation, and
    `LEAVE_PLACE` means that the slot serves now but will not survive a restart."""
    wake: float | None = None
    """Unix seconds at which this may change by itself."""


def plan_unit(unit: UnitObserved) -> UnitPlan:
    if (nothing := inactive.inactive(unit)) is not None:
        return nothing
    unit = incarnation.with_first(unit)
    jitter = incarnation.jitter(unit.uid, unit.status.incarnation)
    budget = incarnation.budget_of(unit.status.restarts, unit.recovery, unit.now, jitter)
    if drain.under_way(unit):  # also if its spec has changed: its hosts are sound and end together
        return drain.carry_out(unit, budget)
    if (begun := incarnation.without_failure(unit, budget)) is not None:
        return begun

    slots = observe(unit)
    wake = earliest(*(slot.wake for slot in slots))
    pods = [slot.pod for slot in slots if slot.pod is not None]
    move = None if unit.syncer.finishing else drain.asked(unit) or nodes.leaving(pods, unit.nodes)
    causes = [slot.cause for slot in slots if slot.cause is not None]
    if not unit.syncer.finishing:
        causes += deadlines.suspicion(unit, pods)
    if causes and (noted := incarnation.noted(unit)) is not None:
        causes.append(noted)
    cause = failure.most_specific(causes)
    if cause is None and not unit.syncer.finishing:
        cause, deadline = deadlines.overdue(unit, pods)
        wake = earliest(wake, deadline)
    if cause is not None:
        if move is not None and cause.reason in (POD_DELETED, failure.EVICTED):
            cause = move  # the platform was faster than the operator
        action = max(cause.action, *(slot.action for slot in slots))
        never = [slot for slot in slots if slot.pod is None and not unit.met]  # these were never created
        replaced = sum(slot.action is Action.REPLACE_POD for slot in slots) - len(never)
        plan = incarnation.after_failure(unit, cause, action, replaced, budget)
        return replace(plan, needs_fresh_list=unit.met and len(pods) < len(slots))
    if move is not None and drain.may_begin(unit, budget):
        return drain.begin(unit, move)
    replace_pod, uids = Action.REPLACE_POD, {pod.uid for pod in pods}
    kept = [slot.pod for slot in slots if slot.pod is not None and slot.action is not replace_pod]
    outgoing = [slot.pod for slot in slots if slot.pod is not None and slot.action is replace_pod]
    stale = [pod for pod in unit.pods if pod.uid not in uids]
    no_room, patience = placement.overdue(unit, kept, stale)
    if no_room and budget.not_before <= unit.now:
        return incarnation.for_capacity(unit, no_room, budget)
    later = budget.not_before if move is not None or no_room else None
    plan = _reconcile(unit, kept, outgoing, stale)
    return replace(plan, wake=earliest(plan.wake, wake, patience, later))


def _reconcile(unit: UnitObserved, kept: Pods, outgoing: Pods, stale: Pods) -> UnitPlan:
    """Reconcile each slot independently. A pod that is replaced keeps its chips and its DNS name until it has ended."""
    # Hosts of a failed unit wait for each other; pods of an old spec may end between two steps.
    grace = DRAIN_SECONDS if unit.status.heal_start_time is None else 1
    remove, stuck = removals((*outgoing, *stale), grace, unit.recovery.force_delete, unit.now)
    places = placement.place(unit, kept, outgoing, stale)
    return UnitPlan(
        status=unit.status,
        service=gang.service(unit),
        create=() if unit.syncer.finishing else gang.pods(unit, places),
        remove=remove,
        renew=tuple(pod for pod in kept if pod.incarnation < unit.status.incarnation and not pod.leaves),
        members=tuple(kept),
        wake=stuck,
    )


def observe(unit: UnitObserved) -> tuple[Slot, ...]:
    """All slots in order of hosts."""
    hosts = unit.hosts
    newest: dict[int, PodView] = {}
    for pod in sorted(unit.pods, key=lambda pod: pod.made_for):
        if pod.placement == unit.status.placement and pod.host < hosts:
            newest[pod.host] = nodes.with_shutdown(pod, unit.nodes)
    if unit.syncer.finishing:  # pods may end
        return tuple(Slot(newest.get(host), Action.SERVING) for host in range(hosts))
    replaceable = cache(lambda: _may_replace(unit, tuple(newest.values())))  # most passes need no answer
    return tuple(judge(unit, host, newest.get(host), replaceable) for host in range(hosts))


def judge(unit: UnitObserved, host: int, pod: PodView | None, replaceable: Callable[[], bool]) -> Slot:
    """What this host needs; `pod` is its newest pod. `replaceable` tells whether the run and the unit's other pods
    allow another pod in its place."""
    incarnation = unit.status.incarnation
    if pod is None:
        if not unit.met:
            return Slot(pod, Action.REPLACE_POD)
        name = pod_name(unit.name, unit.status.placement, host)
        action = Action.REPLACE_POD if replaceable() else Action.LEAVE_PLACE
        cause = Cause(POD_DELETED, "does not exist any more", name, action=Action.REPLACE_POD)
        return Slot(pod, action, cause)
    node = unit.nodes.get(pod.node)
    lost, wake = nodes.lost(pod, node, unit.recovery.node_lost_seconds, unit.now, unit.stepped)
    if lost is not None:
        return Slot(pod, Action.LEAVE_PLACE, lost)
    if (patience := _exit_grace_end(pod)) is not None and patience > unit.now:
        return Slot(pod, Action.SERVING, wake=patience)
    found = classify(pod, incarnation)
    # If nothing is known against pod and node, the slot will survive a restart.
    reliable = not pod.disruption and (node is None or node.sound)
    if found is None:
        return Slot(pod, Action.SERVING if reliable else Action.LEAVE_PLACE, wake=wake)
    again = found.action is Action.REPLACE_POD
    if not (replaceable() and (node is None or node.stays) if again else reliable):
        return Slot(pod, Action.LEAVE_PLACE, found)
    if again and not unit.met and pod.missed(incarnation):
        return Slot(pod, Action.REPLACE_POD, wake=wake)
    return Slot(pod, found.action, found)


def _may_replace(unit: UnitObserved, pods: tuple[PodView, ...]) -> bool:
    """Whether single pods may be replaced: not in a queue, where Kueue counts also ended pods; not from another
    contract than the other pods of the mesh; and not in a pool that lacks hosts, because the pod's own may be gone."""
    if not unit.recovery.in_place or unit.spec.queue_name is not None:
        return False
    contract = unit.contract
    if any(pod.contract != contract for pod in pods if not pod.leaves):
        return False
    return not any(pod.node and unit.pool_of(pod) in unit.poor_pools for pod in pods)


def _exit_grace_end(pod: PodView) -> float | None:
    """Unix seconds until which the end of this pod is no failure; None if it is."""
    if pod.exit_code != 0 or not pod.ended or pod.deletion_time is not None or pod.finished_at is None:
        return None
    return pod.finished_at + EXIT_GRACE_SECONDS
