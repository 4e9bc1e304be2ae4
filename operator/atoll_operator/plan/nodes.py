"""The view of a node that plans read: whether its pods are lost, and whether they should leave it. Kubernetes deletes
the pods of a silent node only after a toleration, and they stay terminating until the node is back. A unit waits for
neither: pods of a lost node count as lost at once, and the incarnation fences processes that may still run there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from atoll_operator.api.group import ACCELERATOR, MACHINE_TYPE, NODE_POOL, SPOT, TOPOLOGY, TPU, Object
from atoll_operator.plan.conditions import earliest
from atoll_operator.plan.pods.view import PodView, Removal, removals
from atoll_operator.plan.unit.failure import HOST_MAINTENANCE, NODE_LOST, Cause

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator declares that a node is off."""
IMPENDING_TERMINATION = "cloud.google.com/impending-node-termination"
"""Taint from GKE's first notice of a maintenance until the machine is removed; new pods do not tolerate it."""
ACTIVE_MAINTENANCE = "cloud.google.com/active-node-maintenance"
"""Label, `ONGOING` while GKE stops the workloads of a node."""
PROOF_SECONDS = 30.0
"""How long a step proves that its unit lives. The syncer of a large run is polled every 12 s."""
LOST_GRACE_SECONDS = 5
"""Grace period for a pod whose node may come back and learn of the deletion."""
Kind = tuple[str, str, str]
"""Accelerator, topology and machine type, as a node's labels name them. No machine type: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    name: str
    pool: str = ""
    kind: Kind = ("", "", "")
    chips: int = 0
    cordoned: bool = False
    silent_since: float | None = None
    """Unix seconds at which this operator first saw it not ready; clocks of nodes may be wrong."""
    silence: str = ""
    """The condition `Ready`, as text."""
    gone: bool = False
    out_of_service: bool = False
    maintenance: str = ""
    """The taint or label that announces its maintenance, or empty."""
    spot: bool = False

    @property
    def off(self) -> bool:
        """It is certain that no process runs on it."""
        return self.gone or self.out_of_service

    @property
    def sound(self) -> bool:
        """Pods can run on it: it is not lost, silent or about to be maintained."""
        return not self.off and self.silent_since is None and not self.maintenance

    @property
    def stays(self) -> bool:
        """It is sound and takes new pods."""
        return self.sound and not self.cordoned


def view_node(node: Object, known: NodeView | None, now: float) -> NodeView:
    """The view of a node's JSON. A node without a condition `Ready` counts as ready."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    labels = metadata.get("labels", {})
    taints = {taint["key"] for taint in spec.get("taints", [])}
    conditions = {item["type"]: item for item in status.get("conditions", [])}
    ready = conditions.get("Ready", {"status": "True"})
    silent = ready["status"] != "True"
    since = known.silent_since if known is not None and known.silent_since is not None else now
    ongoing = f"label {ACTIVE_MAINTENANCE}: ONGOING" if labels.get(ACTIVE_MAINTENANCE) == "ONGOING" else ""
    maintenance = f"taint {IMPENDING_TERMINATION}" if IMPENDING_TERMINATION in taints else ongoing
    return NodeView(
        name=metadata["name"],
        pool=labels.get(NODE_POOL, ""),
        kind=(labels.get(ACCELERATOR, ""), labels.get(TOPOLOGY, ""), labels.get(MACHINE_TYPE, "")),
        chips=int(status.get("allocatable", {}).get(TPU, 0)),
        cordoned=spec.get("unschedulable", False),
        silent_since=since if silent else None,
        silence=f"Ready is {ready['status']}: {ready.get('message', '')}" if silent else "",
        out_of_service=OUT_OF_SERVICE in taints,
        maintenance=maintenance,
        spot=labels.get(SPOT) == "true",
    )


def sound_chips(nodes: Iterable[NodeView]) -> dict[Kind, dict[str, int]]:
    """Chips of the nodes that stay, by kind and node pool; 0 for a pool without such nodes. Each node counts for its
    machine type and for any."""
    found: dict[Kind, dict[str, int]] = {}
    for node in nodes:
        for kind in {node.kind, (*node.kind[:2], "")} if node.pool else ():
            pools = found.setdefault(kind, {})
            pools[node.pool] = pools.get(node.pool, 0) + (node.chips if node.stays else 0)
    return found


def lost(
    pod: PodView, node: NodeView | None, seconds: float, now: float, stepped: float | None = None
) -> tuple[Cause | None, float | None]:
    """Why the pod is lost with its node, or else when to check again. The node may be not ready for `seconds`. A pod
    that has ended is not lost. If its unit `stepped` after the node fell silent (Unix seconds), only the kubelet is
    silent, as when it cannot reach the API server."""
    if node is None or pod.ended or not (node.off or node.silent_since is not None):
        return None, None
    if node.gone:
        why = "does not exist any more"
    elif node.out_of_service or node.silent_since is None:
        why = f"bears the taint {OUT_OF_SERVICE}"
    else:
        deadline = node.silent_since + seconds
        if stepped is not None and stepped > node.silent_since:
            deadline = max(deadline, stepped + max(seconds, PROOF_SECONDS))
        if deadline > now:
            return None, deadline
        why = f"has not been ready for {seconds:g} s: {node.silence}"
    return Cause(NODE_LOST, f"node {pod.node} {why}", pod.name, pod.node), None


def with_shutdown(pod: PodView, nodes: Mapping[str, NodeView]) -> PodView:
    """The pod with what its node says about a shutdown. An announced one is maintenance, also on a Spot node."""
    node = nodes.get(pod.node)
    spot = pod.spot if node is None else (pod.spot or node.spot) and not node.maintenance
    return pod if spot == pod.spot else replace(pod, spot=spot)  # to copy each pod would take most of a pass


def leaving(pods: Iterable[PodView], nodes: Mapping[str, NodeView]) -> Cause | None:
    """Why the unit should move: the first of its pods, in their order, on a node that is about to be removed."""
    for pod in pods:
        node = nodes.get(pod.node)
        if node is not None and node.maintenance:
            message = f"node {node.name} is about to be taken away: {node.maintenance}"
            return Cause(HOST_MAINTENANCE, message, pod.name, node.name)
    return None


def of_lost_nodes(
    pods: Iterable[PodView], nodes: Mapping[str, NodeView], seconds: float, force: bool, now: float
) -> tuple[tuple[Removal, ...], float | None]:
    """Pods of StatefulSets on lost nodes to delete by force, and when to check again. Such a pod has no successor
    before its object is deleted. It is deleted at once if its node is deleted or out of service. If the node is only
    silent for longer than `seconds`, it is deleted when it is stuck and `force` is set. A volume with a single
    attachment keeps the successor from writing beside a process that still runs."""
    found = [(pod, nodes[pod.node]) for pod in pods if pod.node in nodes]
    certain = [Removal(pod.name, pod.uid, 0) for pod, node in found if node.off]
    quiet = [(pod, node.silent_since) for pod, node in found if force and not node.off]
    silent = [(pod, since + seconds) for pod, since in quiet if since is not None]
    late = [pod for pod, end in silent if end <= now]
    overdue, stuck = removals(late, LOST_GRACE_SECONDS, True, now)
    return (*certain, *overdue), earliest(stuck, *(end for _, end in silent if end > now))
