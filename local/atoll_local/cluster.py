"""A whole cluster on this machine: control plane, network, nodes, add-ons; up, down, status."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import yaml

from atoll_local import cgroups, host
from atoll_local.bucket import FakeGcs
from atoll_local.controlplane import CONTROL_PROGRAMS, ControlPlane
from atoll_local.errors import ClusterError, HostError, StateError
from atoll_local.images import COREDNS_IMAGE, build_images, install_images, made_from
from atoll_local.kubectl import SECONDS, kubectl
from atoll_local.machine import DNS_ADDRESS, Machine
from atoll_local.network import Network
from atoll_local.nodes import NODES
from atoll_local.paths import record, state_dir
from atoll_local.programs import Progress, find_all, silent

API_PORT = 6443
READY_SECONDS = 120.0
ANSWER_SECONDS = 10.0
"""An API server that takes longer to say whether it is ready counts as one that does not run."""
STORAGE_CLASS = "standard"
VOLUMES = 64
"""Static volumes: there is no provisioner. A used volume is not bound again."""
ADD_ONS = Path(__file__).with_name("manifests") / "addons.yaml"
"""CoreDNS, storage, and two bindings."""
NODE_PROGRAMS = ("kubectl", "kubelet", "kube-proxy", "coredns", "helm", "fake-gcs-server")


class Cluster:
    """A local cluster by name. Its state is on disk, so that any process can remove it."""

    def __init__(self, name: str = "atoll", progress: Progress = silent) -> None:
        """Raises `HostError` for an invalid name."""
        self.name = name
        self.root = state_dir(name)
        self.network = Network()
        self.progress = progress
        self.made = False
        """Whether this object has created the cluster's folder."""
        self.kubeconfig = self.root / "control" / "kubeconfig"
        self.bucket = FakeGcs(self.root / "bucket", self.network.host)

    def exists(self) -> bool:
        """Whether there is a cluster of this name on this machine, in whatever state."""
        return record(self.name).exists()

    @property
    def machines(self) -> list[Machine]:
        return [
            Machine(
                node=node,
                index=index,
                cluster=self.name,
                root=self.root / "nodes" / node.name,
                network=self.network,
            )
            for index, node in enumerate(NODES)
        ]

    def machine(self, name: str) -> Machine:
        """The node of this name. Raises `ClusterError` if there is none."""
        for machine in self.machines:
            if machine.node.name == name:
                return machine
        raise ClusterError(f"no node is called {name!r}: nodes are {', '.join(node.name for node in NODES)}")

    def running(self) -> bool:
        """Whether the API server answers and every node runs."""
        if not self.kubeconfig.exists() or any(machine.pid is None for machine in self.machines):
            return False
        try:
            return self.kubectl("get", "--raw", "/readyz", timeout=ANSWER_SECONDS).strip() == "ok"
        except ClusterError:
            return False

    def up(self) -> None:
        """Starts the cluster and waits until it is ready. Does nothing if it runs with these images. Raises
        `HostError` if this machine cannot run it, and `ClusterError` if a part did not come up."""
        host.check_machine()
        host.install(self.progress)
        build_images(self.progress)
        images, kept = json.dumps(made_from()), record(self.name)
        if self.exists() and self.running() and kept.read_text() == images:
            self.progress(f"cluster {self.name} is up already")
            return
        if self.exists():
            self.progress(f"removing cluster {self.name}: it does not run, or runs older images")
            self.down()
        if self.root.exists() and any(self.root.iterdir()):
            raise HostError(
                f"{self.root} is not empty, and is no cluster's that can be removed: move it away"
            )
        host.check_addresses(self.network, {API_PORT: "the API server", self.bucket.port: "the bucket"})
        programs = find_all((*CONTROL_PROGRAMS, *NODE_PROGRAMS), self.progress)
        self.root.mkdir(parents=True, exist_ok=True)
        self.made = True
        kept.write_text(images)
        install_images([machine.root for machine in self.machines], self.progress)
        started = time.monotonic()
        self.progress("starting etcd, kube-apiserver, controller-manager, scheduler")
        self.network.up()
        plane = self._plane()
        plane.start()
        self._add_ons()
        self.progress(f"switching on {len(NODES)} nodes")
        assert plane.authority is not None
        for machine in self.machines:
            machine.prepare(plane.authority, plane.server, programs)
            machine.start()
        self.network.route_services(0)
        self.bucket.start()
        self._wait_ready()
        self.progress(f"{len(NODES)} nodes ready after {time.monotonic() - started:.0f} s")

    def down(self) -> bool:
        """Removes all its processes, mounts, namespaces, links, routes and cgroups. Returns False, and changes nothing,
        if there is no cluster of this name. Raises `StateError` if root is needed, or a file could not be removed. The
        record stays, so it can be repeated."""
        if not self.exists():
            return False
        if os.geteuid() != 0:
            raise StateError(
                f"{self.root} stays: its cluster has processes, mounts and network of root's; run it with sudo"
            )
        self.bucket.stop()
        for machine in self.machines:
            machine.stop()
        self._plane().stop()
        cgroups.remove(f"/atoll-{self.name}")
        if not any(machine.pid for other in self._others() for machine in other.machines):
            self.network.down()
        # The record is removed last, so that this can be repeated while anything is left.
        try:
            for part in self.root.iterdir():
                if part.is_dir():
                    shutil.rmtree(part)
            shutil.rmtree(self.root)
        except OSError as error:
            raise StateError(f"{self.root} stays: {error}; mend that and take it down again") from error
        return True

    def _others(self) -> Iterator[Cluster]:
        """The other clusters of this machine. One of them may run, and then the network is its own."""
        for file in self.root.parent.glob("*/cluster.json"):
            if file.parent != self.root:
                yield Cluster(file.parent.name)

    def kubectl(
        self, *args: str, check: bool = True, timeout: float = SECONDS, stdin: str | None = None
    ) -> str:
        """Output of kubectl on this cluster. Raises `ClusterError` if it failed (with `check`) or took longer than
        `timeout` seconds."""
        return kubectl(self.kubeconfig, *args, check=check, timeout=timeout, stdin=stdin)

    def status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kubeconfig": str(self.kubeconfig),
            "running": self.running(),
            "bucket": self.bucket.url,
            "nodes": {machine.node.name: "on" if machine.pid else "off" for machine in self.machines},
        }

    def _plane(self) -> ControlPlane:
        return ControlPlane(
            self.root / "control",
            address=self.network.host,
            port=API_PORT,
            controllers=True,
            fast_failure=True,
            progress=self.progress,
        )

    def _add_ons(self) -> None:
        volumes = self.root / "volumes"
        for number in range(VOLUMES):
            folder = volumes / str(number)
            folder.mkdir(parents=True)
            # fsGroup is not applied to a local path, and the pods do not run as root.
            folder.chmod(0o777)
        listing = {"apiVersion": "v1", "kind": "List", "items": _objects(NODES[0].name, volumes)}
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listing))

    def _wait_ready(self) -> None:
        nodes = [f"node/{node.name}" for node in NODES]
        with_chips = [f"node/{node.name}" for node in NODES if node.chips]
        for node in nodes:  # given several names, kubectl waits only for the creation of the first
            self._await("wait", "--for=create", node)
        self._await("wait", "--for=condition=Ready", *nodes)
        self._await("wait", r"--for=jsonpath={.status.allocatable.google\.com/tpu}", *with_chips)
        self._await("rollout", "status", "deployment/coredns", "--namespace=kube-system")

    def _await(self, *arguments: str) -> None:
        self.kubectl(*arguments, f"--timeout={READY_SECONDS:.0f}s", timeout=READY_SECONDS + 10)


def _objects(node: str, volumes: Path) -> list[dict[str, Any]]:
    """The objects besides nodes, in an order in which they can be applied. CoreDNS and the volumes are on `node`."""
    names = {"node": node, "coredns": COREDNS_IMAGE, "dns": DNS_ADDRESS, "storage": STORAGE_CLASS}
    text = Template(ADD_ONS.read_text()).substitute(names)
    return [*yaml.safe_load_all(text), *(_volume(node, volumes, number) for number in range(VOLUMES))]


def _volume(node: str, volumes: Path, number: int) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{number}"},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(volumes / str(number))},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
