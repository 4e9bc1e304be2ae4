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
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.template import LEAVE_SECONDS
from atoll_operator.plan.removal import DRAIN_SECONDS, removals
from atoll_operator.plan.unit import budget, drain, failure, inactive, incarnation, timeline
from atoll_operator.plan.unit.failure import Action, Cause
from atoll_operator.plan.unit.observed import Orders, UnitObserved
from atoll_operator.plan.unit.placement import PlacementInput, gives_way_until, overdue, place
from atoll_operator.plan.unit.slots import Slot, Verdict, judge, observe
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unitplan import Renewal, UnitPlan
from atoll_operator.plan.unit.witnesses import overdue as late


def plan_unit(unit: UnitObserved, now: float) -> UnitPlan:
    """Decide for one unit."""
    orders = unit.orders
    if orders is None:
        return inactive.without_run(unit, now)
    gang = gang_of(unit, orders)
    if (nothing := inactive.inactive(unit, orders, gang, now)) is not None:
        return nothing
    jitter = budget.jitter(unit.uid, unit.status.incarnation)
    allowance = budget.judge(unit.status.restarts, orders.recovery, now, jitter)
    if drain.under_way(unit.status):  # also if its spec has changed: its hosts are sound and end together
        return drain.carry_out(unit, allowance, now)
    if (begun := incarnation.without_failure(unit, allowance, now)) is not None:
        return begun

    slots, wake = observe(unit, orders, gang, now)
    verdicts = [judge(slot, unit.status.incarnation, now) for slot in slots]
    move = nodes.leaving((slot.pod for slot in slots if slot.pod is not None), unit.nodes)
    if orders.finishing:  # pods may end
        verdicts, move, wake = [Verdict(Action.SERVING)] * len(slots), None, None
    cause, wake = _find_cause(unit, orders, slots, verdicts, wake, now)
    if cause is not None:
        if move is not None and cause.reason in (failure.POD_DELETED, failure.EVICTED):
            cause = move  # the platform was faster than the operator
        action = max(cause.action, *(verdict.action for verdict in verdicts))
        lost = [slot for slot, each in zip(slots, verdicts, strict=True) if each.action is Action.REPLACE_POD]
        replaced = sum(slot.pod is not None or slot.met for slot in lost)  # the others were never created
        plan = incarnation.after_failure(unit, orders, cause, action, replaced, allowance, now)
        return replace(plan, doubtful=any(slot.pod is None and slot.met for slot in slots))
    if move is not None and (allowance.not_before <= now or not drain.has_moved(unit.status)):
        return drain.begin(unit, move, now)
    found = _placement_input(unit, gang, slots, verdicts)
    no_room, patience = overdue(found, now)
    if no_room and allowance.not_before <= now:
        return incarnation.for_capacity(unit, no_room, allowance, now)
    later = allowance.not_before if move is not None or no_room else None
    plan = _reconcile(unit, orders, gang, found, now)
    return replace(plan, wake=earliest(plan.wake, wake, patience, later))


def gang_of(unit: UnitObserved, orders: Orders) -> Gang:
    """What the unit's pods are made of; `check` says whether there can be such a unit."""
    return Gang(
        namespace=unit.namespace,
        unit=unit.name,
        uid=unit.uid,
        placement=unit.status.placement,
        incarnation=unit.status.incarnation,
        spec=unit.spec,
        settings=replace(
            orders.settings,
            image=unit.spec.image or orders.settings.image,
            template=unit.spec.pod_template or orders.settings.template,
        ),
        # An operator that sees no nodes learns of a lost one by the deletion of its pods. That should come when it
        # would have judged: the 40 to 55 s until a node is not ready would be more than a minute with the default.
        leave_seconds=LEAVE_SECONDS if unit.sees_nodes else orders.recovery.node_lost_seconds,
    )


def _find_cause(
    unit: UnitObserved,
    orders: Orders,
    slots: Sequence[Slot],
    verdicts: Sequence[Verdict],
    wake: float | None,
    now: float,
) -> tuple[Cause | None, float | None]:
    """Why the incarnation is lost: the most telling slot, else a deadline of the unit; and when to look again."""
    if cause := failure.first(verdict.cause for verdict in verdicts if verdict.cause is not None):
        return cause, None
    if orders.finishing:
        return None, None
    cause, deadline = late(unit, orders, slots, now)
    return cause, earliest(wake, deadline, *(verdict.wake for verdict in verdicts))


def _placement_input(
    unit: UnitObserved, gang: Gang, slots: Sequence[Slot], verdicts: Sequence[Verdict]
) -> PlacementInput:
    """What is known of where the missing pods may go."""
    there = [
        (slot.pod, verdict) for slot, verdict in zip(slots, verdicts, strict=True) if slot.pod is not None
    ]
    uids = {pod.uid for pod, _ in there}
    return PlacementInput(
        spec=unit.spec,
        shape=gang.slice,
        placement=unit.status.placement,
        pods=tuple(pod for pod, verdict in there if verdict.action is not Action.REPLACE_POD),
        outgoing=tuple(pod for pod, verdict in there if verdict.action is Action.REPLACE_POD),
        stale=tuple(pod for pod in unit.pods if pod.uid not in uids),
        nodes=unit.nodes,
        sound_chips=unit.sound_chips,
        # A queue admits all pods or none, and by then another unit may have any pool.
        at_once=unit.spec.queue_name is not None or not unit.sees_nodes,
        not_before=gives_way_until(unit.status, unit.spec.slices),
        spread=budget.jitter(unit.uid, unit.status.placement),
    )


def _reconcile(unit: UnitObserved, orders: Orders, gang: Gang, found: PlacementInput, now: float) -> UnitPlan:
    """Bring each slot about by itself. A pod that is replaced keeps its chips and its DNS name until it has ended."""
    # Hosts of a failed unit wait for each other; pods that give way to a new spec end in peace.
    grace = DRAIN_SECONDS if unit.status.heal_start_time is None else 1
    remove, stuck = removals((*found.outgoing, *found.stale), grace, orders.recovery.force_delete, now)
    taken = {pod.host for pod in found.outgoing if not pod.ended}
    places = {host: where for host, where in place(found, now).items() if host not in taken}
    status, healed, notices = describe(unit, gang, found.pods, now)
    told = unit.status.incarnation
    return UnitPlan(
        status=status,
        service=gang.service(),
        create=() if orders.finishing else gang.pods(places),
        remove=remove,
        renew=tuple(
            Renewal(pod.name, pod.uid, told)
            for pod in found.pods
            if pod.incarnation < told and not pod.leaves
        ),
        notices=notices,
        wake=stuck,
        healed_seconds=healed,
        heal_stages=timeline.news(unit.status, status),
    )
