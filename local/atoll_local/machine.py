"""One node: containerd, kubelet, kube-proxy and the device plugin in namespaces of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from atoll_local import cgroups
from atoll_local.network import Network
from atoll_local.nodes import Node
from atoll_local.pki import Authority
from atoll_local.process import Daemon, wait_for

DNS_ADDRESS = "10.96.0.10"
PAUSE_IMAGE = "atoll.dev/pause:1"

# Runs as pid 1 of the node. Each service is started again when it ends, as systemd would.
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
    """A node and where its parts lie."""

    node: Node
    index: int
    cluster: str
    root: Path
    """The node's own folder on the host."""
    network: Network
    tpu_environment: dict[str, str]
    """What the device plugin injects in place of real TPUs."""

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
        """Pid 1 of the node, as the host sees it; None when the node is off."""
        outer = self._daemon.pid()
        if outer is None:
            return None
        children = Path(f"/proc/{outer}/task/{outer}/children")
        try:
            inner = children.read_text().split()
        except OSError:
            return None
        return int(inner[0]) if inner else None

    def prepare(
        self, authority: Authority, server: str, programs: dict[str, Path], fast_failure: bool
    ) -> None:
        """Writes certificates and configuration of the node."""
        (self.root / "log").mkdir(parents=True, exist_ok=True)
        for folder in _BOUND.values():
            (self.root / folder).mkdir(exist_ok=True)
        name = self.node.name
        client = authority.issue(f"node-{name}", f"system:node:{name}", "system:nodes")
        serving = authority.issue(f"node-{name}-serving", name, hosts=(name, self.network.node(self.index)))
        proxy = authority.issue(f"proxy-{name}", "system:kube-proxy", "system:node-proxier")
        authority.kubeconfig(self.root / "kubelet.conf", server, "node", client)
        authority.kubeconfig(self.root / "proxy.conf", server, "node", proxy)
        self._write_yaml(
            "kubelet.yaml", self._kubelet(authority.cert, serving.cert, serving.key, fast_failure)
        )
        self._write_yaml("proxy.yaml", self._proxy())
        (self.root / "containerd.toml").write_text(self._containerd())
        (self.root / "cni" / "10-atoll.conflist").write_text(json.dumps(self._cni()))
        labels = ",".join(f"{key}={value}" for key, value in self.node.labels.items())
        plugin = ""
        if self.node.chips:
            (self.root / "tpu.json").write_text(
                json.dumps({"chips": self.node.chips, "env": self.tpu_environment})
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
        """Switches the node on; returns when it has its network (kubelet registers by itself)."""
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
        """Switches the node off, as a power cut does: everything in its namespaces dies at once."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._daemon.stop(signal.SIGKILL)
        self.relay.stop()
        cgroups.remove(self.cgroup)

    def _write_yaml(self, name: str, content: object) -> None:
        (self.root / name).write_text(yaml.safe_dump(content, sort_keys=False))

    def _kubelet(self, ca: Path, cert: Path, key: Path, fast_failure: bool) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"x509": {"clientCAFile": str(ca)}, "anonymous": {"enabled": False}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(cert),
            "tlsPrivateKeyFile": str(key),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "registerWithTaints": self.node.taints,
            "nodeLeaseDurationSeconds": 8 if fast_failure else 40,
            "nodeStatusUpdateFrequency": "4s" if fast_failure else "10s",
            # A full disk of the developer is no reason to evict: this node shares it with everything else.
            "evictionHard": {"memory.available": "64Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": True,
            "syncFrequency": "10s",
        }

    def _proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self.root / "proxy.conf")},
            "clusterCIDR": self.network.pods,
            # Zero leaves the kernel's values alone: they are not this namespace's to set.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
                "udpTimeout": "0s",
                "udpStreamTimeout": "0s",
            },
        }

    def _cni(self) -> dict[str, object]:
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self.network.pod_range(self.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugins = [{"type": "ptp", "ipam": ipam}, {"type": "portmap", "capabilities": {"portMappings": True}}]
        return {"cniVersion": "0.4.0", "name": "atoll", "plugins": plugins}

    def _containerd(self) -> str:
        # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc may not lower the score of a sandbox and dies.
        return f"""\
version = 2
oom_score = 0
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
