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
from atoll_local.chips import TPU_ENVIRONMENT
from atoll_local.network import Network
from atoll_local.nodes import Node
from atoll_local.pki import Authority
from atoll_local.process import Daemon, wait_for

DNS_ADDRESS = "10.96.0.10"
PAUSE_IMAGE = "atoll.dev/pause:1"

# Pid 1 of the node. Restarts each service when it ends, as systemd does.
_INIT = """\
set -eu
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/containerd {sources} {targets}
{binds}
sysctl -qw net.ipv4.ip_forward=1
touch /run/mounted
until [ -e {root}/network-ready ]; do sleep 0.05; done
log() {{ basename "$1" | sed 's/-[0-9.]*$//'; }}
serve() {{ while true; do "$@" >>{root}/log/$(log "$1").log 2>&1 || true; sleep 0.3; done; }}
serve containerd --config {root}/containerd.toml &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
serve {kubelet} --config={root}/kubelet.yaml --kubeconfig={root}/kubelet.conf --hostname-override={name} \\
  --node-ip={address} --node-labels={labels} --root-dir=/var/lib/kubelet --v=1 &
serve {proxy} --config={root}/proxy.yaml --hostname-override={name} &
{plugin}
wait
"""

TEMPLATES = Path(__file__).with_name("manifests") / "node"
_CONFIGURATION = {"kubelet.yaml": "", "proxy.yaml": "", "containerd.toml": "", "10-atoll.conflist": "cni"}
"""The folder of each template in the node's own folder."""
_BOUND = {
    "/var/lib/kubelet": "kubelet",
    "/var/lib/containerd": "containerd",
    "/etc/cni/net.d": "cni",
    "/var/lib/cni": "cni-state",
    "/var/log/pods": "pods-log",
    "/var/log/containers": "containers-log",
}


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
        """Delays what the node sends and receives, where its link has a delay."""
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
        """Writes the node's certificates and configuration."""
        (self.root / "log").mkdir(parents=True, exist_ok=True)
        for folder in _BOUND.values():
            (self.root / folder).mkdir(exist_ok=True)
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
        }
        for template, folder in _CONFIGURATION.items():
            text = Template((TEMPLATES / template).read_text()).substitute(values)
            (self.root / folder / template).write_text(text)
        labels = ",".join(f"{key}={value}" for key, value in self.node.labels.items())
        plugin = ""
        if self.node.chips:
            (self.root / "tpu.json").write_text(
                json.dumps({"chips": self.node.chips, "env": TPU_ENVIRONMENT})
            )
            plugin = f"serve {sys.executable} -m atoll_local.deviceplugin {self.root / 'tpu.json'} &"
        init = _INIT.format(
            root=self.root,
            name=name,
            address=self.network.node(self.index),
            labels=labels,
            sources=" ".join(str(self.root / folder) for folder in _BOUND.values()),
            targets=" ".join(_BOUND),
            binds="\n".join(
                f"mount --bind {self.root / folder} {target}" for target, folder in _BOUND.items()
            ),
            kubelet=programs["kubelet"],
            proxy=programs["kube-proxy"],
            plugin=plugin,
        )
        (self.root / "init.sh").write_text(init)

    def start(self, nodes: int) -> None:
        """Switches the node on, and returns when it has its network. kubelet registers later."""
        (self.root / "network-ready").unlink(missing_ok=True)
        cgroups.create(self.cgroup)
        unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child=KILL"]
        self._daemon.start(
            [*unshare, "--propagation", "private", "--mount-proc", "bash", str(self.root / "init.sh")]
        )
        wait_for(f"node {self.node.name}", lambda: self._mounted(), 20, f"see {self._daemon.log}")
        pid = self.pid
        assert pid is not None
        subprocess.run(["nsenter", "-t", str(pid), "-u", "hostname", self.node.name], check=True, timeout=10)
        self.network.attach(self.index, pid, nodes)
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
