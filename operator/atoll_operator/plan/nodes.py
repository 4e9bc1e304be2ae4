"""The view of a node that plans read: are its pods lost, and should they leave it.

Kubernetes deletes the pods of a silent node only after a toleration, and they stay terminating until the node is back.
A unit waits for neither: pods of a lost node count as lost at once, and the incarnation fences processes that may still
run there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from atoll_operator.api.group import ACCELERATOR, NODE_POOL, TOPOLOGY, TPU, Object
from atoll_operator.plan.clock import earliest
from atoll_operator.plan.pods.capacity import SPOT
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.failure import HOST_MAINTENANCE, NODE_LOST, Cause

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator declares that a node is off."""
IMPENDING_TERMINATION = "cloud.google.com/impending-node-termination"
"""Taint from GKE's first notice of a maintenance until the machine is removed; new pods do not tolerate it."""
ACTIVE_MAINTENANCE = "cloud.google.com/active-node-maintenance"
"""Label, `ONGOING` while GKE stops the workloads of a node."""


PROOF_SECONDS = 30.0
"""How long a step proves that its unit lives. The syncer of a large run is polled every 15 s."""
Kind = tuple[str, str]
"""Accelerator and topology, as GKE's labels name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The relevant fields of one node."""

    name: str
    pool: str = ""
    """Its node pool, or empty."""
    kind: Kind = ("", "")
    chips: int = 0
    """Allocatable chips."""
    cordoned: bool = False
    silent_since: float | None = None
    """Unix seconds at which this operator first saw it not ready; clocks of nodes may be wrong."""
    silence: str = ""
    """The condition `Ready`, as text."""
    gone: bool = False
    """It was deleted."""
    out_of_service: bool = False
    maintenance: str = ""
    """The taint or label that announces its maintenance, or empty."""
    spot: bool = False
    """It is a Spot node."""

    @property
    def sound(self) -> bool:
        """Pods can run on it: it is not lost, silent or about to be maintained."""
        gone = self.gone or self.out_of_service
        return not gone and self.silent_since is None and not self.maintenance

    @property
    def stays(self) -> bool:
        """It is sound and takes new pods."""
        return self.sound and not self.cordoned


def view_node(node: Object, known: NodeView | None, now: float) -> NodeView:
    """The view of a node's JSON. A node without a condition `Ready` counts as ready."""
    metadata = node["metadata"]
    conditions = node.get("status", {}).get("conditions", [])
    ready: Object = next((item for item in conditions if item["type"] == "Ready"), {"status": "True"})
    spec, labels = node.get("spec", {}), metadata.get("labels", {})
    taints = {taint["key"] for taint in spec.get("taints", [])}
    silent = ready["status"] != "True"
    since = known.silent_since if known is not None and known.silent_since is not None else now
    return NodeView(
        name=metadata["name"],
        pool=labels.get(NODE_POOL, ""),
        kind=(labels.get(ACCELERATOR, ""), labels.get(TOPOLOGY, "")),
        chips=int(node.get("status", {}).get("allocatable", {}).get(TPU, 0)),
        cordoned=spec.get("unschedulable", False),
        silent_since=since if silent else None,
        silence=f"Ready is {ready['status']}: {ready.get('message', '')}" if silent else "",
        out_of_service=OUT_OF_SERVICE in taints,
        maintenance=_maintenance(taints, labels),
        spot=labels.get(SPOT) == "true",
    )


def sound_chips(nodes: Iterable[NodeView]) -> dict[Kind, dict[str, int]]:
    """Chips of the nodes that stay, by kind and node pool; 0 for a pool without such nodes."""
    found: dict[Kind, dict[str, int]] = {}
    for node in nodes:
        if node.pool:
            pools = found.setdefault(node.kind, {})
            pools[node.pool] = pools.get(node.pool, 0) + (node.chips if node.stays else 0)
    return found


def gone(node: NodeView) -> NodeView:
    """The same node after its deletion."""
    return replace(node, gone=True)


def lost(
    pods: Iterable[PodView],
    nodes: Mapping[str, NodeView],
    seconds: float,
    now: float,
    stepped: float | None = None,
) -> tuple[list[Cause], float | None]:
    """Pods that are lost with their nodes, and when to check again. Pods that have ended are left out.

    Args:
        seconds: how long a node may be not ready.
        stepped: Unix seconds of the last step seen of the pods' unit. If it steps after its node fell silent, only the
            kubelet is silent, as when it cannot reach the API server.
    """
    proven = 0.0 if stepped is None else stepped + max(seconds, PROOF_SECONDS)
    causes, wake = [], None
    for pod in pods:
        node = nodes.get(pod.node)
        if node is None or pod.ended:
            continue
        if node.gone:
            causes.append(_cause(pod, "does not exist any more"))
        elif node.out_of_service:
            causes.append(_cause(pod, f"bears the taint {OUT_OF_SERVICE}"))
        elif node.silent_since is not None and (stepped or 0.0) > node.silent_since and proven > now:
            wake = earliest(wake, proven)
        elif node.silent_since is not None and node.silent_since + seconds <= now:
            causes.append(_cause(pod, f"has not been ready for {seconds:g} s: {node.silence}"))
        elif node.silent_since is not None:
            wake = earliest(wake, node.silent_since + seconds)
    return causes, wake


def told_by_host(pod: PodView, nodes: Mapping[str, NodeView]) -> PodView:
    """The pod with what its node says about a shutdown. An announced one is maintenance, also on a Spot node."""
    node = nodes.get(pod.node)
    if node is None:
        return pod
    return replace(pod, spot=(pod.spot or node.spot) and not node.maintenance)


def leaving(pods: Iterable[PodView], nodes: Mapping[str, NodeView]) -> Cause | None:
    """Why the unit should move: the first of its pods whose node is about to be removed."""
    for pod in sorted(pods, key=lambda pod: pod.host):
        node = nodes.get(pod.node)
        if node is not None and node.maintenance:
            message = f"node {node.name} is about to be taken away: {node.maintenance}"
            return Cause(HOST_MAINTENANCE, message, pod.name, node.name)
    return None


def _cause(pod: PodView, why: str) -> Cause:
    return Cause(NODE_LOST, f"node {pod.node} {why}", pod.name, pod.node)


def _maintenance(taints: set[str], labels: Mapping[str, str]) -> str:
    if IMPENDING_TERMINATION in taints:
        return f"taint {IMPENDING_TERMINATION}"
    if labels.get(ACTIVE_MAINTENANCE) == "ONGOING":
        return f"label {ACTIVE_MAINTENANCE}: ONGOING"
    return ""
