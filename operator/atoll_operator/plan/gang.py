"""The pods of one unit: a Service for their names, and one pod for each host of the slice."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache

from atoll_operator.api.group import (
    LABEL_COMPONENT,
    LABEL_HOST,
    LABEL_INCARNATION,
    LABEL_MANAGER,
    LABEL_RUN,
    LABEL_UNIT,
    LEARNER,
    MANAGER,
    UNIT_KIND,
    Object,
    owner,
)
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.environment import LIBTPU_PORT, tpu_environment
from atoll_operator.plan.names import pod_name
from atoll_operator.plan.placement import TPU, placement
from atoll_operator.plan.podspec import PodSettings, container, pod_spec
from atoll_operator.plan.tpu import Slice, slice_of
from atoll_runtime.contract import COORDINATOR_PORT, ENV_UNIT, PEER_PORT, UnitContract, dump

METRICS_PORT = 8431
"""TPU runtime metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One incarnation of one unit, with all that its pods are made of."""

    namespace: str
    unit: str
    uid: str
    incarnation: int
    spec: LearnerUnitSpec
    settings: PodSettings

    @property
    def slice(self) -> Slice:
        """Raises ValueError, as `slice_of`."""
        return slice_of(self.spec.accelerator, self.spec.topology, self.spec.machine_type)

    def names(self) -> tuple[str, ...]:
        """Pod names in order of hosts."""
        return tuple(pod_name(self.unit, self.incarnation, host) for host in range(self.slice.hosts))

    def labels(self) -> dict[str, str]:
        return {
            LABEL_MANAGER: MANAGER,
            LABEL_RUN: self.spec.run,
            LABEL_UNIT: self.unit,
            LABEL_COMPONENT: LEARNER,
        }

    def owners(self) -> list[Object]:
        return [owner(UNIT_KIND, self.unit, self.uid)]

    def service(self) -> Object:
        """The headless Service; names resolve before the pods are ready, for they look for each other then."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": self.unit,
                "namespace": self.namespace,
                "labels": self.labels(),
                "ownerReferences": self.owners(),
            },
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {LABEL_UNIT: self.unit},
                "ports": [
                    {"name": "coordinator", "port": COORDINATOR_PORT, "targetPort": COORDINATOR_PORT},
                    {"name": "peers", "port": PEER_PORT, "targetPort": PEER_PORT},
                ],
            },
        }

    def pods(self, names: Container[str] | None = None) -> tuple[Object, ...]:
        """All pods, or those of these names, in order of hosts."""
        return tuple(
            self._pod(host, name) for host, name in enumerate(self.names()) if names is None or name in names
        )

    def _pod(self, host: int, name: str) -> Object:
        shape = self.slice
        labels = {**self.labels(), LABEL_INCARNATION: str(self.incarnation), LABEL_HOST: str(host)}
        main = container(
            self.settings,
            command=["python", "-m", "atoll_runtime.learner"],
            environment={
                **tpu_environment(shape, host, self._host_names()),
                ENV_UNIT: dump(self._contract(shape, host)),
            },
            resources=self.spec.resources,
            extra_resources={TPU: str(shape.chips_per_host)},
        )
        main["ports"] = [
            {"name": "libtpu", "containerPort": LIBTPU_PORT},
            {"name": "tpu-metrics", "containerPort": METRICS_PORT},
            {"name": "coordinator", "containerPort": COORDINATOR_PORT},
            {"name": "peers", "containerPort": PEER_PORT},
        ]
        spec = pod_spec(self.settings, self.unit, main)
        spec |= {
            "restartPolicy": "Never",
            "hostname": name,
            "subdomain": self.unit,
            **placement(self.spec, shape, self.unit, self.incarnation),
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": labels,
                "ownerReferences": self.owners(),
            },
            "spec": spec,
        }

    def _contract(self, shape: Slice, host: int) -> UnitContract:
        return UnitContract(
            unit=self.unit,
            incarnation=self.incarnation,
            host=host,
            hosts=shape.hosts,
            coordinator=f"{self._host_names()[0]}:{COORDINATOR_PORT}",
            address=f"{self._host_names()[host]}:{PEER_PORT}",
            batch=self.spec.batch,
            stream=self.spec.stream,
            streams=self.spec.streams,
        )

    def _host_names(self) -> tuple[str, ...]:
        return host_names(self.namespace, self.unit, self.incarnation, self.slice.hosts)


@lru_cache(maxsize=64)
def host_names(namespace: str, unit: str, incarnation: int, hosts: int) -> tuple[str, ...]:
    """DNS names in order of hosts; every pod of a gang names them all, several times."""
    return tuple(f"{pod_name(unit, incarnation, host)}.{unit}.{namespace}.svc" for host in range(hosts))
