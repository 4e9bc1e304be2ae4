"""The hosts of a unit, one slot each, and what each of them needs (docs/healing.md has the table).

A slot with a cause needs a new incarnation of the unit, which is stored first. In the next pass the failed pod is one
that never ran the new incarnation, so its slot has no cause any more, and is brought about without further cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.plan import nodes
from atoll_operator.plan.pods.names import pod_name
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.failure import POD_DELETED, Action, Cause, classify
from atoll_operator.plan.unit.unit import UnitObserved

EXIT_GRACE_SECONDS = 15.0
"""A pod that ends with 0 may have learned of the run's end before the operator did."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One host of a unit, and what it needs."""

    host: int
    pod: PodView | None
    """The newest pod of this host in this placement: its member of the mesh."""
    action: Action
    cause: Cause | None = None
    """Why the incarnation is lost with this slot. Without a cause `REPLACE_POD` needs no new incarnation, and
    `LEAVE_PLACE` means that the slot serves now but will not survive a restart."""
    wake: float | None = None
    """Unix seconds at which this may change by itself."""


def observe(unit: UnitObserved) -> tuple[Slot, ...]:
    """All slots in order of hosts."""
    hosts = unit.gang.hosts
    newest: dict[int, PodView] = {}
    for pod in sorted(unit.pods, key=lambda pod: pod.made_for):
        if pod.placement == unit.status.placement and pod.host < hosts:
            newest[pod.host] = nodes.told_by_host(pod, unit.nodes)
    if unit.finishing:  # pods may end
        return tuple(Slot(host, newest.get(host), Action.SERVING) for host in range(hosts))
    replaceable = _may_replace(unit, tuple(newest.values()))
    return tuple(judge(unit, host, newest.get(host), replaceable) for host in range(hosts))


def judge(unit: UnitObserved, host: int, pod: PodView | None, replaceable: bool) -> Slot:
    """What this host needs.

    Args:
        pod: its newest pod.
        replaceable: another pod may take this one's place, as far as the run and the unit's other pods allow it.
    """
    incarnation = unit.status.incarnation
    if pod is None:
        if not unit.met:
            return Slot(host, pod, Action.REPLACE_POD)
        name = pod_name(unit.name, unit.status.placement, host)
        action = Action.REPLACE_POD if replaceable else Action.LEAVE_PLACE
        cause = Cause(POD_DELETED, "does not exist any more", name, action=Action.REPLACE_POD)
        return Slot(host, pod, action, cause)
    node = unit.nodes.get(pod.node)
    lost, wake = nodes.lost(pod, node, unit.recovery.node_lost_seconds, unit.now, unit.stepped)
    if lost is not None:
        return Slot(host, pod, Action.LEAVE_PLACE, lost)
    if (patience := _exits_in_peace(pod)) is not None and patience > unit.now:
        return Slot(host, pod, Action.SERVING, wake=patience)
    found = classify(pod, incarnation)
    # Nothing is known against pod and node, so that the slot will survive a restart.
    reliable = not pod.disruption and (node is None or node.sound)
    if found is None:
        return Slot(host, pod, Action.SERVING if reliable else Action.LEAVE_PLACE, wake=wake)
    again = found.action is Action.REPLACE_POD
    if not (replaceable and (node is None or node.stays) if again else reliable):
        return Slot(host, pod, Action.LEAVE_PLACE, found)
    if again and not unit.met and pod.missed(incarnation):
        return Slot(host, pod, Action.REPLACE_POD, wake=wake)
    return Slot(host, pod, found.action, found)


def _may_replace(unit: UnitObserved, pods: tuple[PodView, ...]) -> bool:
    """Whether single pods may be replaced. Kueue counts the pods of a group and keeps those that have ended; all pods
    of a mesh must be made from the same contract; and a pod that is gone may be so because its pool lost a host."""
    if not unit.recovery.in_place or unit.spec.queue_name is not None:
        return False
    contract = unit.gang.contract
    if any(pod.contract != contract for pod in pods if not pod.leaves):
        return False
    return not any(pod.node and unit.pool_of(pod) in unit.poor_pools for pod in pods)


def _exits_in_peace(pod: PodView) -> float | None:
    """Unix seconds until which the end of this pod is no failure; None if it is."""
    if pod.exit_code != 0 or not pod.ended or pod.deletion_time is not None or pod.finished_at is None:
        return None
    return pod.finished_at + EXIT_GRACE_SECONDS
