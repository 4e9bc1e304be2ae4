"""The hosts of a unit, one slot each, and what each of them needs (docs/healing.md has the table).

A slot with a cause needs a new incarnation of the unit, which is stored first. In the next pass the failed pod is one
that never ran the new incarnation, so its slot has no cause any more, and is brought about without further cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_operator.plan import nodes
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.names import pod_name
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import hang
from atoll_operator.plan.unit.failure import POD_DELETED, Action, Cause, classify
from atoll_operator.plan.unit.observed import Orders, UnitObserved
from atoll_operator.plan.unit.placement import lacking, pool_of

EXIT_GRACE_SECONDS = 15.0
"""A pod that ends with 0 may have learned of the run's end before the operator did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One host of a unit, and the pod that is its member of the mesh."""

    host: int
    name: str
    """Of the pod; of a pod that is missing, its first name in this placement."""
    pod: PodView | None = None
    """The newest pod of this host in this placement."""
    node: NodeView | None = None
    """The pod's node; None if it has none or the operator does not see it."""
    met: bool
    """All hosts of this incarnation are, or were, connected to the syncer."""
    lost: Cause | None = None
    """The pod is lost with its node."""
    replaceable: bool = True
    """Another pod may take this one's place: the run allows it, and its host and node pool are sound."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one slot needs."""

    action: Action
    cause: Cause | None = None
    """Why the incarnation is lost with this slot. Without a cause `REPLACE_POD` needs no new incarnation, and
    `LEAVE_PLACE` means that the slot serves now but will not survive a restart."""
    wake: float | None = None
    """Unix seconds at which the verdict may change by itself."""


def judge(slot: Slot, incarnation: int, now: float) -> Verdict:
    """What this slot needs."""
    pod = slot.pod
    if slot.lost is not None:
        return Verdict(Action.LEAVE_PLACE, slot.lost)
    if pod is None and not slot.met:
        return Verdict(Action.REPLACE_POD)
    if pod is None:
        cause: Cause | None = Cause(
            POD_DELETED, "does not exist any more", slot.name, action=Action.REPLACE_POD
        )
    elif (patience := _exits_in_peace(pod)) is not None and patience > now:
        return Verdict(Action.SERVING, wake=patience)
    else:
        cause = classify(pod, incarnation)
    if cause is None:
        return Verdict(Action.SERVING if _reliable(slot) else Action.LEAVE_PLACE)
    if not (slot.replaceable if cause.action is Action.REPLACE_POD else _reliable(slot)):
        return Verdict(Action.LEAVE_PLACE, cause)
    if cause.action is Action.REPLACE_POD and not slot.met and pod is not None and pod.missed(incarnation):
        return Verdict(Action.REPLACE_POD)
    return Verdict(cause.action, cause)


def observe(
    unit: UnitObserved, orders: Orders, gang: Gang, now: float
) -> tuple[tuple[Slot, ...], float | None]:
    """All slots in order of hosts, and when a silent node may count as lost."""
    status = unit.status
    newest: dict[int, PodView] = {}
    for pod in sorted(unit.pods, key=lambda pod: pod.made_for):
        if pod.placement == status.placement and pod.host < gang.hosts:
            newest[pod.host] = nodes.told_by_host(pod, unit.nodes)
    stepped = hang.stepped(unit.pace, status.incarnation)
    lost, wake = nodes.lost(newest.values(), unit.nodes, orders.recovery.node_lost_seconds, now, stepped)
    causes = {cause.pod: cause for cause in lost}
    met, replaceable = unit.met(gang.hosts), _may_replace(unit, orders, gang, tuple(newest.values()))
    slots = []
    for host in range(gang.hosts):
        member = newest.get(host)
        name = member.name if member is not None else pod_name(unit.name, status.placement, host)
        node = unit.nodes.get(member.node) if member is not None else None
        slots.append(
            Slot(
                host=host,
                name=name,
                pod=member,
                node=node,
                met=met,
                lost=causes.get(name),
                replaceable=replaceable and (node is None or node.stays),
            )
        )
    return tuple(slots), wake


def restarted_at(unit: UnitObserved) -> float | None:
    """Unix seconds of the restart that began this incarnation; None if the unit was given new hosts for it."""
    status = unit.status
    if status.incarnation == status.placement or not status.restarts:
        return None
    return parse_time(status.restarts[-1].time)


def renewed(unit: UnitObserved, pod: PodView) -> bool:
    """Whether no process of the last incarnation runs in this pod any more."""
    since = restarted_at(unit)
    if since is None:
        return True
    if pod.made_for == unit.status.incarnation:
        return pod.started_at is not None
    return pod.ended_incarnation == unit.status.incarnation - 1 or (pod.started_at or 0.0) >= since


def _may_replace(unit: UnitObserved, orders: Orders, gang: Gang, pods: Sequence[PodView]) -> bool:
    """Whether single pods may be replaced. Kueue counts the pods of a group and keeps those that have ended; all pods
    of a mesh must be made from the same contract; and a pod that is gone may be so because its pool lost a host."""
    if not orders.recovery.in_place or unit.spec.queue_name is not None:
        return False
    if any(pod.contract != gang.contract for pod in pods if not pod.leaves):
        return False
    poor = lacking(unit.sound_chips, gang.slice)
    return not any(pod.node and pool_of(pod, unit.nodes) in poor for pod in pods)


def _exits_in_peace(pod: PodView) -> float | None:
    """Unix seconds until which the end of this pod is no failure; None if it is."""
    if pod.exit_code != 0 or not pod.ended or pod.deletion_time is not None or pod.finished_at is None:
        return None
    return pod.finished_at + EXIT_GRACE_SECONDS


def _reliable(slot: Slot) -> bool:
    """Nothing is known against the slot's pod and node, so that it will survive a restart."""
    return not (slot.pod is not None and slot.pod.disruption) and (slot.node is None or slot.node.sound)
