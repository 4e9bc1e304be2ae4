"""Which hosts of its node pool a slice may have without asking the scheduler (docs/decisions/0036).

A scheduler binds 50 pods a second, and where a slice's leader is bound there is nothing left to choose: the pool is its
own, and its pods are one a host. So those that follow are made for the nodes that are free. All that is not plain is
left to the scheduler, and so is a unit whose pod was turned away by a kubelet: that knows of pods that we do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atoll_operator.api.common import Toleration
from atoll_operator.api.group import ACCELERATOR, NODE_POOL, TOPOLOGY, TPU
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.plan.nodes import NodeView, Taint
from atoll_operator.plan.pods.capacity import FLEX_START, RESERVATION, SPOT
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.failure import ADMISSION_REJECTED

_OF_POOLS = frozenset(
    {
        NODE_POOL,
        ACCELERATOR,
        TOPOLOGY,
        SPOT,
        FLEX_START,
        RESERVATION,
        "cloud.google.com/gke-queued",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/os",
    }
)
"""Labels that all nodes of a TPU pool have alike."""


@dataclass(frozen=True, slots=True)
class Seats:
    """A node, and what is left of it."""

    node: NodeView
    free: int
    """Chips that no pod we know of has."""
    shared: bool = False
    """A pod of another unit is on it, and has not ended."""


def plain(spec: LearnerUnitSpec, status: LearnerUnitStatus, template: PodTemplate) -> bool:
    """Whether a pod of the unit may be made for a node of its pool; where a claim can be is the scheduler's to say."""
    rejected = any(restart.reason == ADMISSION_REJECTED for restart in status.restarts)
    ordinary = spec.node_selector.keys() <= _OF_POOLS
    claims = any(volume.persistent_volume_claim is not None for volume in template.volumes)
    return not rejected and ordinary and not claims and spec.queue_name is None


def take(count: int, pool: Iterable[Seats], spec: LearnerUnitSpec, chips: int) -> tuple[str, ...]:
    """Nodes for so many hosts, a name for each; none where not all have one, or another unit is in the pool.

    Args:
        pool: all nodes of it that are known.
        chips: of one host.
    """
    known = sorted(pool, key=lambda seats: seats.node.name)
    if any(seats.shared for seats in known):
        return ()
    free = [seats.node.name for seats in known if _fits(seats.node, spec) for _ in range(seats.free // chips)]
    return tuple(free[:count]) if len(free) >= count else ()


def used(pods: Iterable[PodView]) -> int:
    """Chips of a node that these pods of it have: one that is told to go has them until it has ended."""
    return sum(pod.chips for pod in pods if not pod.ended)


def _fits(node: NodeView, spec: LearnerUnitSpec) -> bool:
    kind = (spec.accelerator, spec.topology)
    return (
        node.stays and node.kind == kind and all(_tolerated(taint, spec.tolerations) for taint in node.taints)
    )


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """As the scheduler judges it; every pod of ours tolerates the taint of TPU nodes."""
    key, value, effect = taint
    return key == TPU or any(
        each.key in (None, key)
        and each.effect in (None, effect)
        and (each.operator == "Exists" or (each.value or "") == value)
        for each in tolerations
    )
