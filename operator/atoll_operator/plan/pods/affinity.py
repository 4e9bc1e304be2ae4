"""Node selector, tolerations and affinity of a learner's pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll_operator.api.group import ACCELERATOR, LABEL_HOLDS, NODE_POOL, TOPOLOGY, TPU, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.template import literals, lost_nodes
from atoll_operator.plan.pods.topology import Slice
from atoll_operator.plan.unit.placement import PodPlacement


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
    choice: Object = {
        "nodeSelector": {
            **spec.node_selector,
            ACCELERATOR: spec.accelerator,
            TOPOLOGY: spec.topology,
            **({"node.kubernetes.io/instance-type": shape.machine} if spec.machine_type else {}),
            **({NODE_POOL: place.pool} if place.pool else {}),
        },
        "tolerations": [
            _OF_TPU_NODES,
            *lost_nodes(leave_seconds),
            *(literals(item) for item in spec.tolerations),
        ],
    }
    affinity: Object = {}
    if place.holds:
        affinity["nodeAffinity"] = _IN_A_POOL | (_avoid(place.avoid) if place.avoid else {})
        affinity["podAntiAffinity"] = _required(_away_from_others(holder))
    if place.near:
        affinity["podAffinity"] = _required({"labelSelector": {"matchLabels": dict(peers)}})
    return choice | ({"affinity": affinity} if affinity else {})


def _away_from_others(holder: str) -> Object:
    """Away from the pods that hold a pool for another slice, in all namespaces. Old pods of this slice do not count."""
    others = [
        {"key": LABEL_HOLDS, "operator": "Exists"},
        {"key": LABEL_HOLDS, "operator": "NotIn", "values": [holder]},
    ]
    return {"labelSelector": {"matchExpressions": others}, "namespaceSelector": {}}


def _avoid(pools: Sequence[str]) -> Object:
    """A preference only: if no other pool has room, one that lacks hosts is better than none."""
    terms = {"matchExpressions": [{"key": NODE_POOL, "operator": "NotIn", "values": list(pools)}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": terms}]}


def _required(term: Object) -> Object:
    return {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": NODE_POOL, **term}]}


_IN_A_POOL: Object = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": NODE_POOL, "operator": "Exists"}]}]
    }
}
"""Anti-affinity alone would accept a node without a pool, where the peers cannot follow."""
_OF_TPU_NODES: Object = {"key": TPU, "operator": "Exists"}
