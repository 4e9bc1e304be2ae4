"""Which nodes the pods of a unit may run on."""

from __future__ import annotations

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_INCARNATION, LABEL_UNIT, LEARNER, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.podspec import literals
from atoll_operator.plan.tpu import Slice

TPU = "google.com/tpu"
"""Resource, and key of the taint of TPU nodes."""
NODE_POOL = "cloud.google.com/gke-nodepool"
LEAVE_SECONDS = 30
"""`tolerationSeconds` for a node that is lost; Kubernetes' default of 300 is most of a slow heal."""


def placement(spec: LearnerUnitSpec, shape: Slice, unit: str, incarnation: int) -> Object:
    """The part of a pod's spec that says where it runs."""
    place: Object = {
        "nodeSelector": {
            **spec.node_selector,
            "cloud.google.com/gke-tpu-accelerator": spec.accelerator,
            "cloud.google.com/gke-tpu-topology": spec.topology,
            **({"node.kubernetes.io/instance-type": shape.machine} if spec.machine_type else {}),
        },
        "tolerations": [*_TOLERATIONS, *(literals(item) for item in spec.tolerations)],
    }
    if shape.hosts > 1:
        place["affinity"] = _one_node_pool(unit, incarnation)
    return place


def _one_node_pool(unit: str, incarnation: int) -> Object:
    """A multi-host slice is one node pool: near its own pods, away from those of other units.

    Its own are those of this incarnation: terminating pods of a lost one must not hold it in their pool.
    """
    own = {LABEL_UNIT: unit, LABEL_INCARNATION: str(incarnation)}
    here = [{"topologyKey": NODE_POOL, "labelSelector": {"matchLabels": own}}]
    others = [
        {
            "topologyKey": NODE_POOL,
            "labelSelector": {
                "matchExpressions": [
                    {"key": LABEL_COMPONENT, "operator": "In", "values": [LEARNER]},
                    {"key": LABEL_UNIT, "operator": "NotIn", "values": [unit]},
                ]
            },
            "namespaceSelector": {},
        }
    ]
    return {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": here},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": others},
    }


_TOLERATIONS: tuple[Object, ...] = (
    {"key": TPU, "operator": "Exists"},
    {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": LEAVE_SECONDS,
    },
    {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": LEAVE_SECONDS,
    },
)
