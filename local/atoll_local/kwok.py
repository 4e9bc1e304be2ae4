"""Nodes without machines: kwok acts as the kubelet of every node that carries its annotation.

It does not bind pods: the real scheduler or a test does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from atoll_local.controlplane import ControlPlane, free_port
from atoll_local.nodes import TPU_RESOURCE, Node
from atoll_local.process import Daemon, Startable, wait_for
from atoll_local.programs import find

Object = dict[str, Any]
MANAGED = {"kwok.x-k8s.io/node": "fake"}
EXIT_CODE = "kwok.atoll.dev/exit-code"
"""Annotation of a pod: its container ends with this status, which is not 0."""
PARALLEL = 16
"""Concurrent stages. With kwok's default of 4 its latency to the API server would limit a burst."""
LEASE_SECONDS = 40
"""Duration of a node's lease, as for a kubelet. It is renewed four times in this time."""
READY_SECONDS = 120.0
NOT_READY = "node.kubernetes.io/not-ready"
"""Taint of a new node. The controller removes it some time after the node has become Ready."""
STAGES = Path(__file__).with_name("manifests") / "kwok-stages.yaml"
"""Stages that replace kwok's own."""


def node(
    name: str, *, labels: Mapping[str, str] | None = None, capacity: Mapping[str, str] | None = None
) -> Object:
    """A node with ample resources, plus `capacity`."""
    resources = {
        "cpu": "1000",
        "memory": "1Ti",
        "ephemeral-storage": "1Ti",
        "pods": "10000",
        **(capacity or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": dict(MANAGED),
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
        },
        "status": {"capacity": resources, "allocatable": resources},
    }


def tpu_node(name: str, *, pool: str, accelerator: str, topology: str, machine: str, chips: int) -> Object:
    """A node of a GKE TPU node pool: labels, taint and chips."""
    one = Node(
        name=name, pool=pool, machine_type=machine, accelerator=accelerator, topology=topology, chips=chips
    )
    return node(name, labels=one.labels, capacity={TPU_RESOURCE: str(chips)}) | {
        "spec": {"taints": one.taints}
    }


class Kwok(Startable):
    """One kwok controller beside a control plane; use it as a context manager, or `start` and `stop`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.daemon = Daemon("kwok", plane.folder / "run")

    def start(self) -> None:
        """Starts it. `add` creates the nodes. Raises `ClusterError`, with the end of its log, if it ended, and
        `HostError` if the program cannot be obtained."""
        config = self._plane.folder / "kwok.yaml"
        config.write_text(yaml.safe_dump(_options(), sort_keys=False) + "---\n" + STAGES.read_text())
        address = f"127.0.0.1:{free_port()}"
        self.daemon.start(
            [
                str(find("kwok", self._plane.progress)),
                f"--kubeconfig={self._plane.kubeconfig}",
                f"--config={config}",
                f"--server-address={address}",
            ]
        )
        self.daemon.await_answer(f"http://{address}/healthz", 30)

    def stop(self) -> None:
        self.daemon.stop()

    def add(self, nodes: Iterable[Object]) -> None:
        """Creates nodes and waits until all of them are Ready and without the not-ready taint. Raises `ClusterError`
        if they were not ready within two minutes, or the API server refused one."""
        bodies = list(nodes)
        self._plane.kubectl("create", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": bodies})
        wanted = {body["metadata"]["name"] for body in bodies}
        wait_for("the fake nodes", lambda: wanted <= self._ready(), READY_SECONDS, f"see {self.daemon.log}")

    def _ready(self) -> set[str]:
        # `kubectl wait` checks one node at a time, so 500 nodes take minutes.
        path = (
            '{range .items[*]}{.metadata.name}{" "}{.status.conditions[?(@.type=="Ready")].status}'
            '{" "}{.spec.taints[*].key}{"\\n"}{end}'
        )
        lines = (
            line.split()
            for line in self._plane.kubectl("get", "nodes", "-o", f"jsonpath={path}").splitlines()
        )
        return {
            name
            for name, ready, *taints in (line for line in lines if len(line) > 1)
            if ready == "True" and not (self._plane.controllers and NOT_READY in taints)
        }

    def remove(self, names: Iterable[str]) -> None:
        """Deletes nodes and with them their pods, as after the loss of a machine. Raises `ClusterError` if the API
        server refused."""
        self._plane.kubectl("delete", "node", "--ignore-not-found", "--wait=false", *names)


def _options() -> Object:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": False,
            "manageNodesWithAnnotationSelector": ",".join(f"{k}={v}" for k, v in MANAGED.items()),
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "nodeLeaseParallelism": PARALLEL,
            "nodePlayStageParallelism": PARALLEL,
            "podPlayStageParallelism": PARALLEL,
            "podsOnNodeSyncParallelism": 1,
        },
    }
