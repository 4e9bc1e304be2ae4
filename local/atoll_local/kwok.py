"""Nodes without machines: kwok plays the kubelet of every node that carries its annotation.

Its stages, in place of the project's own ones: a node is Ready at once and keeps its Lease; a pod that is bound runs
at once, is gone at once when it is deleted, and ends with a status when it is told to. Who binds the pods is not
kwok's business: the real scheduler, or a test.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from atoll_local.controlplane import ControlPlane, free_port
from atoll_local.errors import ClusterError
from atoll_local.process import Daemon, Startable, wait_for
from atoll_local.programs import find

Object = dict[str, Any]
MANAGED = {"kwok.x-k8s.io/node": "fake"}
EXIT_CODE = "kwok.atoll.dev/exit-code"
"""Annotation of a pod: its container ends with this status, other than 0."""
PARALLEL = 16
"""Stages played at a time: with kwok's own 4, its latency to the API server would set the pace of a burst."""
LEASE_SECONDS = 40
"""As a kubelet; renewed four times as often."""
FAST_LEASE_SECONDS = 8
"""For a control plane that takes a node for lost after 8 s."""
READY_SECONDS = 120.0
NOT_READY = "node.kubernetes.io/not-ready"
"""Taint of a new node; the controller takes it away a while after the node has become Ready."""
_NOW = "{{ Now | Quote }}"


def node(
    name: str, *, labels: Mapping[str, str] | None = None, capacity: Mapping[str, str] | None = None
) -> Object:
    """A node with much of everything; `capacity` on top of it."""
    resources = {
        "cpu": "1000",
        "memory": "1Ti",
        "ephemeral-storage": "1Ti",
        "pods": "1000",
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
    labels = {
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
        "node.kubernetes.io/instance-type": machine,
    }
    body = node(name, labels=labels, capacity={"google.com/tpu": str(chips)})
    body["spec"] = {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]}
    return body


class Kwok(Startable):
    """One kwok controller beside a control plane; use it as a context manager, or `start` and `stop`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.daemon = Daemon("kwok", plane.folder / "run")

    def start(self) -> None:
        """Starts it; nodes come with `add`.

        Raises:
            ClusterError: it ended; the message has the end of its log.
            HostError: the program cannot be had.
        """
        config = self._plane.folder / "kwok.yaml"
        lease = FAST_LEASE_SECONDS if self._plane.fast_failure else LEASE_SECONDS
        config.write_text(yaml.safe_dump_all([_options(lease), *_STAGES], sort_keys=False))
        address = f"127.0.0.1:{free_port()}"
        self.daemon.start(
            [
                str(find("kwok", self._plane.progress)),
                f"--kubeconfig={self._plane.kubeconfig}",
                f"--config={config}",
                f"--server-address={address}",
            ]
        )
        wait_for("kwok", lambda: self.daemon.pid() is None or _listens(address), 30, f"see {self.daemon.log}")
        if self.daemon.pid() is None:
            raise ClusterError(f"kwok ended at once: {self.daemon.tail(2)}")

    def stop(self) -> None:
        self.daemon.stop()

    def add(self, nodes: Iterable[Object]) -> None:
        """Makes nodes and waits until all of them are Ready, and free of the taint that says otherwise.

        Raises:
            ClusterError: not within two minutes, or the API server refused one.
        """
        bodies = list(nodes)
        self._plane.kubectl("create", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": bodies})
        wanted = {body["metadata"]["name"] for body in bodies}
        wait_for("the fake nodes", lambda: wanted <= self._ready(), READY_SECONDS, f"see {self.daemon.log}")

    def _ready(self) -> set[str]:
        # `kubectl wait` looks at one node after the other: 500 of them take minutes.
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
        """Deletes nodes; with them go their pods, as after the loss of a machine.

        Raises:
            ClusterError: the API server refused.
        """
        self._plane.kubectl("delete", "node", "--ignore-not-found", "--wait=false", *names)


def _listens(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _options(lease_seconds: int) -> Object:
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": False,
            "manageNodesWithAnnotationSelector": ",".join(f"{k}={v}" for k, v in MANAGED.items()),
            "nodeLeaseDurationSeconds": lease_seconds,
            "nodeLeaseParallelism": PARALLEL,
            "nodePlayStageParallelism": PARALLEL,
            "podPlayStageParallelism": PARALLEL,
            "podsOnNodeSyncParallelism": 1,
        },
    }


def _stage(kind: str, name: str, when: Iterable[tuple[str, str, list[str]]], then: Object) -> Object:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {
                "matchExpressions": [
                    {"key": key, "operator": operator} | ({"values": values} if values else {})
                    for key, operator, values in when
                ]
            },
            "next": then,
        },
    }


def _condition(kind: str, status: str, reason: str) -> str:
    return f"- {{type: {kind}, status: {status!r}, reason: {reason}, lastTransitionTime: {_NOW}}}\n"


_KEPT: tuple[str, str, list[str]] = (".metadata.deletionTimestamp", "DoesNotExist", [])
_DELETED: tuple[str, str, list[str]] = (".metadata.deletionTimestamp", "Exists", [])
_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_EXIT = f'.metadata.annotations["{EXIT_CODE}"]'
_CONTAINER = "- name: {{ .name | Quote }}\n  image: {{ .image | Quote }}\n  restartCount: 0\n"
_STAGES = (
    _stage(
        "Node",
        "node-ready",
        [_KEPT, (_READY, "NotIn", ["True"])],
        {
            "statusTemplate": "conditions:\n"
            + _condition("Ready", "True", "KubeletReady")
            + "addresses:\n- {type: Hostname, address: {{ .metadata.name | Quote }}}\n"
        },
    ),
    _stage(
        "Pod",
        "pod-runs",
        [_KEPT, (".status.phase", "In", ["Pending"]), (".spec.nodeName", "Exists", [])],
        {
            "statusTemplate": f"phase: Running\nstartTime: {_NOW}\nconditions:\n"
            + "".join(
                _condition(kind, "True", "Started") for kind in ("Initialized", "ContainersReady", "Ready")
            )
            + "containerStatuses:\n{{ range .spec.containers }}\n"
            + _CONTAINER
            + f"  ready: true\n  started: true\n  state: {{running: {{startedAt: {_NOW}}}}}\n{{{{ end }}}}\n"
        },
    ),
    _stage(
        "Pod",
        "pod-fails",
        [_KEPT, (".status.phase", "In", ["Running"]), (_EXIT, "Exists", [])],
        {
            "statusTemplate": "phase: Failed\nconditions:\n"
            + "".join(_condition(kind, "False", "PodFailed") for kind in ("ContainersReady", "Ready"))
            + "containerStatuses:\n{{ range .spec.containers }}\n"
            + _CONTAINER
            + "  ready: false\n  started: false\n  state:\n    terminated:\n      exitCode: "
            + f'{{{{ index $.metadata.annotations "{EXIT_CODE}" }}}}\n'
            + f"      reason: Error\n      startedAt: {_NOW}\n      finishedAt: {_NOW}\n{{{{ end }}}}\n"
        },
    ),
    # A kubelet says that the containers have ended before the pod goes: Kueue, whose finalizer holds it, waits.
    _stage(
        "Pod",
        "pod-ends",
        [_DELETED, (".metadata.finalizers", "Exists", []), (".status.phase", "In", ["Pending", "Running"])],
        {"statusTemplate": "phase: Failed\n"},
    ),
    _stage("Pod", "pod-goes", [_DELETED, (".metadata.finalizers", "DoesNotExist", [])], {"delete": True}),
)
