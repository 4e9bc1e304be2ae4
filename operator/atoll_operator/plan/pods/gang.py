"""The objects of one unit: a Service for the pods' DNS names, and one pod for each host of its slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from atoll_operator.api import group
from atoll_operator.api.group import Object
from atoll_operator.plan.conditions import document
from atoll_operator.plan.pods import template
from atoll_operator.plan.pods.names import pod_group, pod_name
from atoll_operator.plan.unit.unit import UnitObserved
from atoll_runtime import contract

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
METRICS_PORT = 8431
"""TPU runtime metrics."""
MEGASCALE_PORT = 8080
"""Port of libtpu's transport between the slices of a unit (libtpu's default)."""
LIBTPU_ARGUMENTS = "LIBTPU_INIT_ARGS"
"""Variable with libtpu's flags. libtpu ends the process when it does not know a flag."""
ABORT = "--megascale_error_reporter_abort_on_hang=true --megascale_error_reporter_abort_on_error=true"
"""Ends the processes after a hang or an error between slices. Without these flags they would wait for ever.
libtpu 0.0.42 accepts both."""
PORTS = {
    "coordinator": contract.COORDINATOR_PORT,
    "coordinator-2": contract.SPARE_COORDINATOR_PORT,
    "peers": contract.PEER_PORT,
}
_CAPABILITIES = {"drop": ["ALL"], "add": ["SYS_RESOURCE"]}
LOCKING: Object = {"runAsUser": 0, "runAsNonRoot": False, "capabilities": _CAPABILITIES}
"""Security context of a container that may raise its limit of locked memory. It runs as root, because another user
loses added capabilities when its program starts."""
SIZE = f"{group.KUEUE}pod-group-total-count"
FORCIBLE = f"{group.KUEUE}safe-to-forcefully-delete"
"""Annotation for a pod that is still terminating on an unreachable node and so holds the quota of its whole group.
Kueue may delete it with its gate `FailureRecoveryPolicy`. This is safe, because the syncer fences the old process."""
_INCARNATION: Object = {
    "path": contract.INCARNATION_FILE.removeprefix(f"{template.POD_DIR}/"),
    "fieldRef": {"fieldPath": f"metadata.annotations['{group.ANNOTATION_INCARNATION}']"},
}
"""The pod's annotation as a file. The kubelet updates it while the pod runs."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where one pod may run, beyond what its unit's spec asks of a node."""

    pool: str = ""
    """The node pool; empty: any."""
    holds: bool = False
    """Whether it holds its pool: no pod that holds for another slice may be there."""
    near: bool = False
    """Whether it follows the slice's other pods by affinity, because the name of their pool is not known."""
    avoid: tuple[str, ...] = ()
    """Pools that lack hosts or still run an old pod of the unit; taken only if no other pool has room."""


def service(unit: UnitObserved) -> Object:
    return template.headless(_metadata(unit, unit.name), {group.LABEL_UNIT: unit.name}, PORTS)


def pods(unit: UnitObserved, places: Mapping[int, PodPlacement]) -> tuple[Callable[[], Object], ...]:
    """Functions that make one body each. All bodies of a large unit at once would take too much memory and time."""
    return tuple(partial(_pod, unit, host, places[host]) for host in sorted(places))


def _metadata(unit: UnitObserved, name: str) -> Object:
    owner = group.owner(group.UNIT_KIND, unit.name, unit.uid)
    metadata = group.metadata(name, unit.namespace, unit.spec.run, owner)
    metadata["labels"] |= {group.LABEL_UNIT: unit.name, group.LABEL_COMPONENT: group.LEARNER}
    return metadata


def _pod(unit: UnitObserved, host: int, place: PodPlacement) -> Object:
    placement, incarnation = unit.status.placement, unit.status.incarnation
    number = str(host // unit.slice.hosts)
    peers = {group.LABEL_UNIT: unit.name, group.LABEL_PLACEMENT: str(placement), group.LABEL_SLICE: number}
    metadata = _metadata(unit, pod_name(unit.name, incarnation, host))
    labels = {**metadata["labels"], **peers, group.LABEL_HOST: str(host)}
    if place.holds:
        labels[group.LABEL_HOLDS] = f"{unit.uid}.{number}"
    annotations = {group.ANNOTATION_INCARNATION: str(incarnation), group.ANNOTATION_CONTRACT: unit.contract}
    spec = template.pod_spec(unit.pod_settings, unit.name, _container(unit, host))
    spec["volumes"].append({"name": "pod", "downwardAPI": {"items": [_INCARNATION]}})
    spec |= {
        "restartPolicy": "OnFailure",
        # Used when somebody else deletes a pod: the garbage collector, an eviction, a drain of the node.
        "terminationGracePeriodSeconds": template.DRAIN_SECONDS,
        "hostname": pod_name(unit.name, placement, host),
        "subdomain": unit.name,
        **_node_choice(unit, place, f"{unit.uid}.{number}", peers),
    }
    metadata |= template.pod_metadata(unit.pod_settings, labels, annotations)
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    _enqueue(pod, unit)
    return pod


def _enqueue(pod: Object, unit: UnitObserved) -> None:
    """If the unit names a queue, put the pod into the group of its placement in Kueue. Kueue admits a group's pods
    together by quota, and gates them until then. It returns the quota when the last pod has ended, because none is ever
    replaced. Kueue's webhook would add the label `managed` and the gate. The operator sets them so that no pod runs
    without admission, even if the webhook excludes the namespace or Kueue is not installed yet. Only Kueue adds and
    removes its finalizer."""
    spec, metadata = unit.spec, pod["metadata"]
    if spec.queue_name is None:
        return
    name = pod_group(unit.name, unit.status.placement, unit.uid)
    labels = {group.LABEL_QUEUE: spec.queue_name, group.LABEL_POD_GROUP: name, group.KUEUE_MANAGED: "true"}
    if spec.queue_priority_class is not None:
        labels[f"{group.KUEUE}priority-class"] = spec.queue_priority_class
    metadata["labels"] |= labels
    final = f"{group.KUEUE}retriable-in-group"
    metadata["annotations"] |= {SIZE: str(unit.hosts), final: "false", FORCIBLE: "true"}
    pod["spec"]["schedulingGates"] = [{"name": f"{group.KUEUE}admission"}]


def _node_choice(unit: UnitObserved, place: PodPlacement, holder: str, peers: Mapping[str, str]) -> Object:
    """Node selector, tolerations and affinity. `holder` is the value of `LABEL_HOLDS`, which names the slice in the
    whole cluster; `peers` are labels of the pods of the same slice and placement."""
    spec = unit.spec
    selector = {**spec.node_selector, group.ACCELERATOR: spec.accelerator, group.TOPOLOGY: spec.topology}
    if spec.machine_type:
        selector[group.MACHINE_TYPE] = unit.slice.machine
    if place.pool:
        selector[group.NODE_POOL] = place.pool
    # An operator that sees no nodes learns of a lost one when Kubernetes deletes its pods. With `LEAVE_SECONDS` after
    # the 40 to 55 s until a node is not ready, that would take more than a minute. An operator that sees nodes judges
    # by itself, and Kubernetes must not delete the pods before.
    leave_seconds = max(unit.recovery.node_lost_seconds, template.LEAVE_SECONDS if unit.sees_nodes else 0)
    tpus: Object = {"key": group.TPU, "operator": "Exists"}
    tolerations = [tpus, *template.lost_nodes(leave_seconds), *map(document, spec.tolerations)]
    affinity: Object = {}
    # Anti-affinity alone would accept a node without a pool, where the peers cannot follow.
    rules: list[Object] = [{"key": group.NODE_POOL, "operator": "Exists"}] if place.holds else []
    suspects = sorted({name for restart in unit.status.restarts for name in restart.avoid})
    key = group.NODE_POOL if unit.slice.hosts > 1 else "kubernetes.io/hostname"
    if suspects and key not in selector:  # a pool that the user or the unit's leader has is kept
        rules.append({"key": key, "operator": "NotIn", "values": suspects})
    if rules:
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": rules}]}}
    if place.holds:
        if place.avoid:  # only a preference: a pool that lacks hosts is better than none
            others = [{"key": group.NODE_POOL, "operator": "NotIn", "values": list(place.avoid)}]
            rather = {"weight": 100, "preference": {"matchExpressions": others}}
            affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [rather]
        # Away from the pods that hold a pool for another slice, in all namespaces. Old pods of this slice do not count.
        holders = [
            {"key": group.LABEL_HOLDS, "operator": "Exists"},
            {"key": group.LABEL_HOLDS, "operator": "NotIn", "values": [holder]},
        ]
        affinity["podAntiAffinity"] = _in_pool({"matchExpressions": holders}, namespaceSelector={})
    if place.near:
        affinity["podAffinity"] = _in_pool({"matchLabels": dict(peers)})
    choice = {"nodeSelector": selector, "tolerations": tolerations}
    return choice | ({"affinity": affinity} if affinity else {})


def _in_pool(pods: Object, **more: Object) -> Object:
    """A required term about the node pool of other pods."""
    term = {"topologyKey": group.NODE_POOL, "labelSelector": pods, **more}
    return {REQUIRED: [term]}


def _container(unit: UnitObserved, host: int) -> Object:
    settings, tpus = unit.pod_settings, {group.TPU: str(unit.slice.chips_per_host)}
    environment = _tpu_environment(unit, host)
    environment[contract.ENV_UNIT] = contract.brief(_contract(unit, host))
    main = template.container(settings, "atoll_runtime.learner", environment, unit.spec.resources, **tpus)
    if settings.environment.get(contract.ENV_LOCK_MEMORY) == "true":
        main["securityContext"] |= LOCKING
    ports = {"libtpu": contract.LIBTPU_PORT, "tpu-metrics": METRICS_PORT, **PORTS}
    ports |= {"megascale": MEGASCALE_PORT} if unit.spec.slices > 1 else {}
    main["ports"] = template.container_ports(ports)
    main["volumeMounts"].append({"name": "pod", "mountPath": template.POD_DIR, "readOnly": True})
    return main


def _tpu_environment(unit: UnitObserved, host: int) -> dict[str, str]:
    """Variables for libtpu and JAX of one host, counted slice by slice. libtpu flags of the user or the administrator
    come last and override ours; those of a ConfigMap or Secret take the place of ours. All variables are computed from
    the spec, never from live pods, because a stale value hangs a mesh. They name only hosts of this unit, because JAX
    makes one cluster of all processes that `MEGASCALE_*` joins, and that cluster fails as a whole. Learners make the
    lists of hosts from one name in their contract. In the pods, such lists grow with the square of the slice: 0.5 GB
    for 2,304 hosts."""
    shape, slices = unit.slice, unit.spec.slices
    number, worker = divmod(host, shape.hosts)
    flags = unit.pod_settings.variable(LIBTPU_ARGUMENTS)
    several = {
        "MEGASCALE_NUM_SLICES": str(slices),
        "MEGASCALE_SLICE_ID": str(number),
        "MEGASCALE_COORDINATOR_ADDRESS": unit.host_name(0),
        "MEGASCALE_PORT": str(MEGASCALE_PORT),
        **({} if flags is None else {LIBTPU_ARGUMENTS: f"{ABORT} {flags}".rstrip()}),
    }
    return {
        "TPU_WORKER_ID": str(worker),
        "TPU_PROCESS_PORT": str(contract.LIBTPU_PORT),
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        "TPU_TOPOLOGY": shape.topology,
        "TPU_TOPOLOGY_WRAP": shape.wrap,
        "TPU_HOST_BOUNDS": shape.host_bounds,
        "TPU_CHIPS_PER_HOST_BOUNDS": shape.chip_bounds,
        "TPU_SKIP_MDS_QUERY": "true",
        "JAX_COORDINATOR_PORT": str(contract.COORDINATOR_PORT),
        **(several if slices > 1 else {}),
    }


def _contract(unit: UnitObserved, host: int) -> contract.UnitContract:
    shape = unit.slice
    return contract.UnitContract(
        unit=unit.name,
        incarnation=unit.status.placement,
        host=host,
        hosts=unit.hosts,
        host_names=unit.host_name("{}"),
        slice_hosts=shape.hosts,
        chips=shape.chips_per_host,
        coordinator=f"{unit.host_name(0)}:{contract.COORDINATOR_PORT}",
        address=f"{unit.host_name(host)}:{contract.PEER_PORT}",
        batch=unit.spec.batch,
        stream=unit.spec.stream,
        streams=unit.spec.streams,
    )
