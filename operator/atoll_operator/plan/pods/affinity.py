"""Node selector, tolerations and affinity of a learner's pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.api.group import ACCELERATOR, LABEL_HOLDS, NODE_POOL, TOPOLOGY, TPU, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.template import literals, lost_nodes
from atoll_operator.plan.pods.topology import Slice


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where one pod may run, beyond what its unit's spec asks of a node."""

    pool: str = ""
    """The node pool; empty: any."""
    holds: bool = False
    """No pod that holds for another slice may be in the same pool."""
    near: bool = False
    """In the pool of the slice's other pods, by affinity, because the pool's name is not known."""
    avoid: tuple[str, ...] = ()
    """Pools that lack hosts or still run an old pod of the unit; taken only if no other pool has room."""


def node_choice(
    spec: LearnerUnitSpec,
    shape: Slice,
    place: PodPlacement,
    holder: str,
    peers: Mapping[str, str],
    leave_seconds: int,
) -> Object:
    """The part of a pod's spec that says where it runs.

    Args:
        holder: value of `LABEL_HOLDS`: names the slice in the whole cluster.
        peers: labels of the pods of the same slice and placement.
        leave_seconds: seconds after which Kubernetes deletes the pod of a lost node.
    """
    selector = {**spec.node_selector, ACCELERATOR: spec.accelerator, TOPOLOGY: spec.topology}
    if spec.machine_type:
        selector["node.kubernetes.io/instance-type"] = shape.machine
    if place.pool:
        selector[NODE_POOL] = place.pool
    tpus: Object = {"key": TPU, "operator": "Exists"}
    tolerations = [tpus, *lost_nodes(leave_seconds), *map(literals, spec.tolerations)]
    affinity: Object = {}
    if place.holds:
        # Anti-affinity alone would accept a node without a pool, where the peers cannot follow.
        in_a_pool = {"matchExpressions": [{"key": NODE_POOL, "operator": "Exists"}]}
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [in_a_pool]}
        }
        if place.avoid:  # only a preference: a pool that lacks hosts is better than none
            others = [{"key": NODE_POOL, "operator": "NotIn", "values": list(place.avoid)}]
            rather = {"weight": 100, "preference": {"matchExpressions": others}}
            affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [rather]
        # Away from the pods that hold a pool for another slice, in all namespaces. Old pods of this slice do not count.
        holders = [
            {"key": LABEL_HOLDS, "operator": "Exists"},
            {"key": LABEL_HOLDS, "operator": "NotIn", "values": [holder]},
        ]
        affinity["podAntiAffinity"] = _required({"matchExpressions": holders}, namespaceSelector={})
    if place.near:
        affinity["podAffinity"] = _required({"matchLabels": dict(peers)})
    choice = {"nodeSelector": selector, "tolerations": tolerations}
    return choice | ({"affinity": affinity} if affinity else {})


def _required(selector: Object, **more: Object) -> Object:
    term = {"topologyKey": NODE_POOL, "labelSelector": selector, **more}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
