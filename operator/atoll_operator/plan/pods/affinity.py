"""What a learner's pod says about the nodes that it may run on: selectors, tolerations, affinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll_operator.api.group import ACCELERATOR, LABEL_HOLDS, NODE_POOL, TOPOLOGY, TPU, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.template import literals, lost_nodes
from atoll_operator.plan.pods.topology import Slice
from atoll_operator.plan.unit.placement import Spot


def node_choice(
    spec: LearnerUnitSpec, shape: Slice, spot: Spot, holder: str, peers: Mapping[str, str], leave_seconds: int
) -> Object:
    """The part of a pod's spec that says where it runs.

    Args:
        holder: the slice's name in the whole cluster, value of `LABEL_HOLDS`.
        peers: labels of the gang's pods of the same slice.
        leave_seconds: after which Kubernetes deletes the pod of a lost node.
    """
    choice: Object = {
        "nodeSelector": {
            **spec.node_selector,
            ACCELERATOR: spec.accelerator,
            TOPOLOGY: spec.topology,
            **({"node.kubernetes.io/instance-type": shape.machine} if spec.machine_type else {}),
            **({NODE_POOL: spot.pool} if spot.pool else {}),
        },
        "tolerations": [
            _OF_TPU_NODES,
            *lost_nodes(leave_seconds),
            *(literals(item) for item in spec.tolerations),
        ],
    }
    affinity: Object = {}
    if spot.holds:
        affinity["nodeAffinity"] = _IN_A_POOL | (_rather_not(spot.avoid) if spot.avoid else {})
        affinity["podAntiAffinity"] = _required(_away_from_others(holder))
    if spot.near:
        affinity["podAffinity"] = _required({"labelSelector": {"matchLabels": dict(peers)}})
    return choice | ({"affinity": affinity} if affinity else {})


def _away_from_others(holder: str) -> Object:
    """From the holders of all other slices, in any namespace; pods of this slice's old gang do not hold it off."""
    others = [
        {"key": LABEL_HOLDS, "operator": "Exists"},
        {"key": LABEL_HOLDS, "operator": "NotIn", "values": [holder]},
    ]
    return {"labelSelector": {"matchExpressions": others}, "namespaceSelector": {}}


def _rather_not(pools: Sequence[str]) -> Object:
    """A wish: where no other pool has room, one that lacks hosts is better than none, for it may get them back."""
    terms = {"matchExpressions": [{"key": NODE_POOL, "operator": "NotIn", "values": list(pools)}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": terms}]}


def _required(term: Object) -> Object:
    return {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": NODE_POOL, **term}]}


_IN_A_POOL: Object = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": NODE_POOL, "operator": "Exists"}]}]
    }
}
"""Anti-affinity alone would be content with a node of no pool, where peers cannot follow."""
_OF_TPU_NODES: Object = {"key": TPU, "operator": "Exists"}
