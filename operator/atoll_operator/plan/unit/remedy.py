"""How a unit that failed comes back: its containers restart in place, or a new gang of pods is made.

In place costs neither the scheduler nor the set-up of pods, and keeps the chips. Pods that are lost while their hosts
are sound are made anew there, and the others stay (docs/decisions/0039). It is chosen when all else is sound, and given
up when it does not help or the kubelets would delay it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.failure import Cause, Scope, classify

LIMIT = 2
"""Restarts in place after which the next is a new gang: as many without a merge between them, or within the memory of
the kubelets, which restart a container at once, then after 10 s, then after 20 s."""
KUBELET_MEMORY_SECONDS = 600.0
"""After which a kubelet forgets a container's restarts (twice its longest back-off)."""
RENEWAL_SECONDS = 90.0
"""From a restart in place until every container has restarted: the kubelet sees a pod's change at once, and looks at
each pod every 60 to 90 s in any case. A process that is stopped, or in the kernel, does not end itself."""


AFTERSHOCK_SECONDS = 10.0
"""From a restart in place, within which pods that are lost besides are lost with it: its processes have not met yet."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A gang that was whole, as a failure left it; empty where it was not."""

    kept: tuple[PodView, ...] = ()
    lost: tuple[PodView, ...] = ()
    """As they were last seen; without a node where they never were."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """A restart of a gang that stays."""

    replaced: int
    """Its pods that are made anew."""
    hosts: int

    def __str__(self) -> str:
        new = f"; {self.replaced} of {self.hosts} pods are made anew" if self.replaced else ""
        return f"restarts in place{new}"


@dataclass(frozen=True, slots=True)
class Renewal:
    """A pod whose process is to become that of `incarnation`."""

    name: str
    uid: str
    incarnation: int


def in_place(
    cause: Cause,
    status: LearnerUnitStatus,
    gang: Damage,
    nodes: Mapping[str, NodeView],
    seen: int,
    now: float,
) -> bool:
    """Whether another process may do in each pod that is left, and another pod on the host of each that is not.

    Args:
        seen: newest incarnation that the syncer knows; if it is not ours, others use the unit's name.
    """
    return (
        cause.scope < Scope.GANG
        and len(gang.kept) > 0
        and all(_sound(pod, status.incarnation, nodes.get(pod.node)) for pod in gang.kept)
        and all(replaceable(pod, status.incarnation, nodes.get(pod.node)) for pod in gang.lost)
        and seen <= status.incarnation
        and status.incarnation - max(status.gang, status.merged_incarnation) < LIMIT
        and _remembered(status, now) < LIMIT
    )


def aftershock(
    cause: Cause, status: LearnerUnitStatus, gang: Damage, nodes: Mapping[str, NodeView], now: float
) -> bool:
    """Whether more pods of a gang that restarts in place were lost, so that they are made anew in the same incarnation:
    what takes several does not take them in one moment. Each pod can be lost so once."""
    since = restarted_at(status)
    return (
        since is not None
        and 0 <= now - since <= AFTERSHOCK_SECONDS
        and cause.scope is Scope.POD
        and len(gang.kept) > 0
        and all(
            pod.made_for == status.incarnation or _sound(pod, status.incarnation, nodes.get(pod.node))
            for pod in gang.kept
        )
        and all(
            older(pod, status.incarnation) and replaceable(pod, status.incarnation, nodes.get(pod.node))
            for pod in gang.lost
        )
    )


def older(pod: PodView, incarnation: int) -> bool:
    """It was made before this incarnation, and no process of that may still run, or has ended, in it."""
    restarted = not pod.ended and pod.ended_incarnation == incarnation - 1
    return 0 < pod.made_for < incarnation and pod.ended_incarnation != incarnation and not restarted


def restarted_at(status: LearnerUnitStatus) -> float | None:
    """Unix seconds of the restart in place that began this incarnation; None for the first one of a gang."""
    restarts = _in_this_gang(status)
    return parse_time(restarts[-1]) if restarts else None


def renewed(pod: PodView, status: LearnerUnitStatus) -> bool:
    """Whether the process of the last incarnation has ended in this pod; true where there was none."""
    since = restarted_at(status)
    if since is None:
        return True
    if pod.made_for == status.incarnation:
        return pod.started_at is not None
    return pod.ended_incarnation == status.incarnation - 1 or (pod.started_at or 0.0) >= since


def renewals(pods: Iterable[PodView], incarnation: int) -> tuple[Renewal, ...]:
    """Pods that have not been told of the incarnation yet."""
    return tuple(
        Renewal(pod.name, pod.uid, incarnation)
        for pod in pods
        if pod.incarnation < incarnation and not leaves(pod)
    )


def leaves(pod: PodView) -> bool:
    """It has ended, or somebody deletes it: no process comes to be in it any more."""
    return pod.ended or pod.deletion_time is not None


def replaceable(pod: PodView, incarnation: int, node: NodeView | None) -> bool:
    """Whether another pod may do on the host of this one, which is lost."""
    cause = classify(pod, incarnation)
    return (cause is None or cause.scope is Scope.POD) and (node is None or node.stays)


def _sound(pod: PodView, incarnation: int, node: NodeView | None) -> bool:
    """Nothing is known against the pod and its node but what its process did."""
    cause = classify(pod, incarnation)
    if pod.phase != "Running" or pod.disruption or (cause is not None and cause.scope is not Scope.PROCESS):
        return False
    return node is None or not (
        node.gone or node.out_of_service or node.silent_since is not None or node.maintenance
    )


def _remembered(status: LearnerUnitStatus, now: float) -> int:
    """Restarts in place of this gang that its kubelets have not forgotten: each renews their memory."""
    count = 0
    for time in reversed(_in_this_gang(status)):
        if now - parse_time(time) > KUBELET_MEMORY_SECONDS:
            break
        count, now = count + 1, parse_time(time)
    return count


def _in_this_gang(status: LearnerUnitStatus) -> list[str]:
    """Times of its restarts in place: each raised the incarnation by one."""
    count = status.incarnation - status.gang
    return [restart.time for restart in status.restarts if restart.in_place][-count:] if count else []
