"""The objects of one unit: a Service for the pods' DNS names, and one pod for each host of its slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from atoll_operator.api.group import (
    ANNOTATION_CONTRACT,
    ANNOTATION_INCARNATION,
    LABEL_COMPONENT,
    LABEL_HOLDS,
    LABEL_HOST,
    LABEL_MANAGER,
    LABEL_PLACEMENT,
    LABEL_RUN,
    LABEL_SLICE,
    LABEL_UNIT,
    LEARNER,
    MANAGER,
    TPU,
    UNIT_KIND,
    Object,
    owner,
)
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.affinity import PodPlacement, node_choice
from atoll_operator.plan.pods.environment import (
    LIBTPU_ARGUMENTS,
    LIBTPU_PORT,
    MEGASCALE_PORT,
    check_names,
    tpu_environment,
)
from atoll_operator.plan.pods.names import pod_group, pod_name
from atoll_operator.plan.pods.settings import digest
from atoll_operator.plan.pods.template import (
    LEAVE_SECONDS,
    POD_DIR,
    PodSettings,
    container,
    container_ports,
    headless,
    pod_metadata,
    pod_spec,
)
from atoll_operator.plan.pods.topology import Slice, check_slices, slice_of
from atoll_operator.plan.removal import DRAIN_SECONDS
from atoll_operator.plan.unit.kueue import enqueue
from atoll_runtime.contract import (
    COORDINATOR_PORT,
    ENV_LOCK_MEMORY,
    ENV_UNIT,
    INCARNATION_FILE,
    PEER_PORT,
    SPARE_COORDINATOR_PORT,
    UnitContract,
    brief,
)

METRICS_PORT = 8431
"""TPU runtime metrics."""
PORTS = {"coordinator": COORDINATOR_PORT, "coordinator-2": SPARE_COORDINATOR_PORT, "peers": PEER_PORT}
"""Of the Service."""
LOCKING: Object = {
    "runAsUser": 0,
    "runAsNonRoot": False,
    "capabilities": {"drop": ["ALL"], "add": ["SYS_RESOURCE"]},
}
"""Security context of a container that may raise its limit of locked memory. It runs as root, because another user
loses added capabilities when its program starts."""
_INCARNATION: Object = {
    "path": INCARNATION_FILE.removeprefix(f"{POD_DIR}/"),
    "fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION_INCARNATION}']"},
}
"""The pod's annotation as a file. The kubelet updates it while the pod runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All that the pods of one unit are made of."""

    namespace: str
    unit: str
    uid: str
    placement: int
    incarnation: int
    spec: LearnerUnitSpec
    settings: PodSettings
    leave_seconds: int = LEAVE_SECONDS
    """Seconds after which Kubernetes deletes the pods of a lost node."""

    @property
    def slice(self) -> Slice:
        """Raises ValueError, as `slice_of`."""
        return slice_of(self.spec.accelerator, self.spec.topology, self.spec.machine_type)

    @property
    def hosts(self) -> int:
        """Number of hosts of all slices. The first slice has the first hosts, and so on."""
        return self.spec.slices * self.slice.hosts

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.hosts * self.slice.chips_per_host

    @property
    def contract(self) -> str:
        """Digest of what the run says of its pods. All pods of a mesh must have the same."""
        return digest(self.settings)

    def check(self) -> None:
        """Raise ValueError if there can be no such unit. The message names the field and what would be right."""
        check_slices(self.slice, self.spec.slices, "slices")
        check_names(self.slice, self._host_names())

    def service(self) -> Object:
        """The headless Service."""
        metadata = {"name": self.unit, **self._metadata(), "labels": self._labels()}
        return headless(metadata, {LABEL_UNIT: self.unit}, PORTS)

    def pods(self, places: Mapping[int, PodPlacement]) -> tuple[Object, ...]:
        """The pods of these hosts, in order of hosts."""
        contract = self.contract
        return tuple(self._pod(host, places[host], contract) for host in sorted(places))

    def _metadata(self) -> Object:
        return {"namespace": self.namespace, "ownerReferences": [owner(UNIT_KIND, self.unit, self.uid)]}

    def _labels(self) -> dict[str, str]:
        return {
            LABEL_MANAGER: MANAGER,
            LABEL_RUN: self.spec.run,
            LABEL_UNIT: self.unit,
            LABEL_COMPONENT: LEARNER,
        }

    def _pod(self, host: int, place: PodPlacement, contract: str) -> Object:
        number = str(host // self.slice.hosts)
        holder = f"{self.uid}.{number}"
        peers = {LABEL_UNIT: self.unit, LABEL_PLACEMENT: str(self.placement), LABEL_SLICE: number}
        labels = {**self._labels(), **peers, LABEL_HOST: str(host)}
        if place.holds:
            labels[LABEL_HOLDS] = holder
        annotations = {ANNOTATION_INCARNATION: str(self.incarnation), ANNOTATION_CONTRACT: contract}
        spec = pod_spec(self.settings, self.unit, self._container(host))
        spec["volumes"].append({"name": "pod", "downwardAPI": {"items": [_INCARNATION]}})
        spec |= {
            "restartPolicy": "OnFailure",
            # Used when somebody else deletes a pod: the garbage collector, an eviction, a drain of the node.
            "terminationGracePeriodSeconds": DRAIN_SECONDS,
            "hostname": pod_name(self.unit, self.placement, host),
            "subdomain": self.unit,
            **node_choice(self.spec, self.slice, place, holder, peers, self.leave_seconds),
        }
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod_name(self.unit, self.incarnation, host),
                **self._metadata(),
                **pod_metadata(self.settings, labels, annotations),
            },
            "spec": spec,
        }
        enqueue(pod, self.spec, pod_group(self.unit, self.placement, self.uid), self.hosts)
        return pod

    def _container(self, host: int) -> Object:
        shape, settings, slices = self.slice, self.settings, self.spec.slices
        arguments = settings.variable(LIBTPU_ARGUMENTS)
        environment = {
            **tpu_environment(shape, slices, host, self._host_names(), arguments),
            ENV_UNIT: brief(self._contract(host)),
        }
        tpus = {TPU: str(shape.chips_per_host)}
        main = container(settings, "atoll_runtime.learner", environment, self.spec.resources, **tpus)
        if settings.environment.get(ENV_LOCK_MEMORY) == "true":
            main["securityContext"] |= LOCKING
        ports = {"libtpu": LIBTPU_PORT, "tpu-metrics": METRICS_PORT, **PORTS}
        main["ports"] = container_ports(ports | ({"megascale": MEGASCALE_PORT} if slices > 1 else {}))
        main["volumeMounts"].append({"name": "pod", "mountPath": POD_DIR, "readOnly": True})
        return main

    def _contract(self, host: int) -> UnitContract:
        return UnitContract(
            unit=self.unit,
            incarnation=self.placement,
            host=host,
            hosts=self.hosts,
            chips=self.slice.chips_per_host,
            coordinator=f"{self._host_names()[0]}:{COORDINATOR_PORT}",
            address=f"{self._host_names()[host]}:{PEER_PORT}",
            batch=self.spec.batch,
            stream=self.spec.stream,
            streams=self.spec.streams,
        )

    def _host_names(self) -> tuple[str, ...]:
        return host_names(self.namespace, self.unit, self.placement, self.hosts)


@lru_cache(maxsize=64)
def host_names(namespace: str, unit: str, placement: int, hosts: int) -> tuple[str, ...]:
    """DNS names in order of hosts. Cached: every pod names them all, several times."""
    return tuple(f"{pod_name(unit, placement, host)}.{unit}.{namespace}.svc" for host in range(hosts))
