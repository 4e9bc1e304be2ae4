"""One node: containerd, kubelet, kube-proxy and the device plugin in namespaces of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from atoll_local import cgroups
from atoll_local.network import Network
from atoll_local.nodes import NODES, TPU_ENVIRONMENT, Node
from atoll_local.pki import Authority
from atoll_local.process import Daemon, wait_for

DNS_ADDRESS = "10.96.0.10"
PAUSE_IMAGE = "atoll.dev/pause:1"
SANDBOX = "/usr/bin/sleep"
"""The program of a pod's sandbox, in that image."""

TEMPLATES = Path(__file__).with_name("manifests") / "node"
CNI = "10-atoll.conflist"
"""The template that goes to a separate folder, which holds all CNI configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node and its files."""

    node: Node
    index: int
    cluster: str
    root: Path
    """The node's own folder on the host."""
    network: Network

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def cgroup(self) -> str:
        return f"/atoll-{self.cluster}/{self.node.name}"

    @property
    def _daemon(self) -> Daemon:
        return Daemon("node", self.root)

    @property
    def relay(self) -> Daemon:
        """Delays what the node sends and receives, if its link has a delay."""
        return Daemon("relay", self.root)

    @property
    def pid(self) -> int | None:
        """Pid 1 of the node in the host's namespace; None if the node is off."""
        outer = self._daemon.pid()
        if outer is None:
            return None
        children = Path(f"/proc/{outer}/task/{outer}/children")
        try:
            inner = children.read_text().split()
        except OSError:
            return None
        return int(inner[0]) if inner else None

    def prepare(self, authority: Authority, server: str, programs: dict[str, Path]) -> None:
        for folder in ("log", "cni"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        name = self.node.name
        client = authority.issue(f"node-{name}", f"system:node:{name}", "system:nodes")
        serving = authority.issue(f"node-{name}-serving", name, hosts=(name, self.network.node(self.index)))
        proxy = authority.issue(f"proxy-{name}", "system:kube-proxy", "system:node-proxier")
        authority.kubeconfig(self.root / "kubelet.conf", server, "node", client)
        authority.kubeconfig(self.root / "proxy.conf", server, "node", proxy)
        values = {
            "root": self.root,
            "ca": authority.cert,
            "cert": serving.cert,
            "key": serving.key,
            "cgroup": self.cgroup,
            "dns": DNS_ADDRESS,
            "taints": json.dumps(self.node.taints),
            "pods": self.network.pods,
            "pod_range": self.network.pod_range(self.index),
            "pause": PAUSE_IMAGE,
            "name": name,
            "address": self.network.node(self.index),
            "labels": ",".join(f"{key}={value}" for key, value in self.node.labels.items()),
            "kubelet": programs["kubelet"],
            "proxy": programs["kube-proxy"],
            "chips": self.node.chips,
            "python": sys.executable,
        }
        for template in TEMPLATES.iterdir():
            place = self.root / "cni" if template.name == CNI else self.root
            (place / template.name).write_text(Template(template.read_text()).substitute(values))
        plugin = {"chips": self.node.chips, "env": TPU_ENVIRONMENT}
        (self.root / "tpu.json").write_text(json.dumps(plugin))

    def start(self) -> None:
        """Switches the node on, and returns when its network is ready. The kubelet registers later."""
        (self.root / "network-ready").unlink(missing_ok=True)
        cgroups.create(self.cgroup)
        unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child=KILL"]
        self._daemon.start(
            [*unshare, "--propagation", "private", "--mount-proc", "bash", str(self.root / "init.sh")]
        )
        wait_for(f"node {self.node.name}", self._mounted, 20, f"see {self._daemon.log}")
        pid = self.pid
        assert pid is not None
        subprocess.run(["nsenter", "-t", str(pid), "-u", "hostname", self.node.name], check=True, timeout=10)
        self.network.attach(self.index, pid, len(NODES))
        (self.root / "network-ready").touch()

    def _mounted(self) -> bool:
        pid = self.pid
        return pid is not None and Path(f"/proc/{pid}/root/run/mounted").exists()

    def stop(self) -> None:
        """Switches the node off like a power cut: kills everything in its namespaces."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._daemon.stop(signal.SIGKILL)
        self.relay.stop()
        cgroups.remove(self.cgroup)
