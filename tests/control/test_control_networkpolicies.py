"""The network policies, enforced: kube-network-policies decides on each connection between network namespaces that
stand for the pods of a run, of other tenants and of the operator. API server, kernel and connections are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver import Api
from pod_kinds import kinds

from atoll_local.controlplane import ControlPlane
from atoll_local.host import install
from atoll_local.namespaces import MORTAL, Namespace
from atoll_local.network import Network, sh
from atoll_local.process import spawn, wait_for
from atoll_local.programs import find
from atoll_operator.api.group import EVALUATOR, LEARNER, SYNCER

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
ROOT = Path(__file__).resolve().parents[2]
QUEUE = 100
SYSTEM = yaml.safe_load((ROOT / "manifests" / "deployment.yaml").read_text())
OF_OPERATOR = SYSTEM["spec"]["template"]["metadata"]["labels"]
OF = {name: pod["metadata"]["labels"] for name, pod in kinds(slices=2).items()}
PODS: dict[str, tuple[str, Mapping[str, str]]] = {
    "learner": ("runs", OF[LEARNER]), "another learner": ("runs", OF[LEARNER]),
    "syncer": ("runs", OF[SYNCER]), "another shard": ("runs", OF[SYNCER]), "evaluator": ("runs", OF[EVALUATOR]),
    "operator": (SYSTEM["metadata"]["namespace"], OF_OPERATOR),
    "stranger": ("runs", {}), "neighbour of the operator": (SYSTEM["metadata"]["namespace"], {}),
    "learner of others": ("others", OF[LEARNER]), "operator of others": ("others", OF_OPERATOR),
    "Prometheus": ("monitoring", {}), "agent of the API server": ("kube-system", {}),
}  # fmt: skip
"""Namespace and labels of each."""
LEARNERS, SHARDS = {"learner", "another learner"}, {"syncer", "another shard"}
READERS = {"Prometheus", "agent of the API server"}
UNIT_PORTS = (7403, 8080, 8471, 8476, 8477)
OPEN: dict[str, dict[int, set[str]]] = {
    **{name: {**dict.fromkeys(UNIT_PORTS, LEARNERS), 8431: READERS} for name in LEARNERS},
    **{
        name: {**dict.fromkeys((7400, 7404), LEARNERS | SHARDS), 7401: {"operator"}, 7402: READERS}
        for name in SHARDS
    },
    "evaluator": {7401: {"operator"}, 7402: READERS},
}
"""Who may reach which port of a pod; what is not here is closed. Pods of no run are open."""
PORTS = sorted({*(port for each in OPEN.values() for port in each), 9999})
SERVER = """
import selectors, socket, sys
waiting = selectors.DefaultSelector()
for port in map(int, sys.argv[1:]):
    waiting.register(socket.create_server(("", port), backlog=64), selectors.EVENT_READ)
while True:
    for key, _ in waiting.select():
        key.fileobj.accept()[0].close()
"""
# A lost first packet is sent again after 1 s.
CLIENT = """
import json, selectors, socket, sys, time
waiting, reached, until = selectors.DefaultSelector(), [], time.monotonic() + 2.5
for address, port in json.loads(sys.argv[1]):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex((address, port))
    waiting.register(one, selectors.EVENT_WRITE, (address, port))
while waiting.get_map() and (left := until - time.monotonic()) > 0:
    for key, _ in waiting.select(left):
        waiting.unregister(key.fileobj)
        if not key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            reached.append(key.data)
print(json.dumps(reached))
"""
Reached = dict[str, dict[str, set[int]]]
"""By source and target, the ports."""


@dataclass
class Pod:
    """A network namespace behind the node."""

    address: str
    process: subprocess.Popen[bytes]

    @property
    def inside(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.process.pid), "-n")


def attach(held: ExitStack, node: Namespace, index: int) -> Pod:
    """A pod whose packets the node forwards, with a server on every port."""

    def start(*command: str) -> subprocess.Popen[bytes]:
        process = held.enter_context(subprocess.Popen([*MORTAL, *command]))
        held.callback(process.kill)
        return process

    pod, link = Pod(f"10.247.0.{10 + index}", start("unshare", "--net", "sleep", "infinity")), f"pod{index}"
    comm = Path(f"/proc/{pod.process.pid}/comm")
    wait_for("a namespace", lambda: comm.read_text() == "sleep\n", 10)
    near = ("netns", str(pod.process.pid))
    sh(*node.inside, "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", *near)
    sh(*node.inside, "ip", "link", "set", link, "up")
    sh(*node.inside, "ip", "route", "add", pod.address, "dev", link)
    # The node answers for every address behind it, at once.
    for setting in (f"conf.{link}.proxy_arp=1", f"neigh.{link}.proxy_delay=0"):
        sh(*node.inside, "sysctl", "-qw", f"net.ipv4.{setting}")
    for command in (
        "link set lo up",
        f"addr add {pod.address}/32 dev eth0",
        "link set eth0 up",
        "route add default dev eth0",
    ):
        sh(*pod.inside, "ip", *command.split())
    start(*pod.inside, sys.executable, "-c", SERVER, *map(str, PORTS))
    return pod


def reach(pods: Mapping[str, Pod]) -> Reached:
    """Tries every port of every pod from every other one."""
    asked = [[pod.address, port] for pod in pods.values() for port in PORTS]
    command = (sys.executable, "-c", CLIENT, json.dumps(asked))
    clients = {
        name: subprocess.Popen([*MORTAL, *pod.inside, *command], stdout=subprocess.PIPE)
        for name, pod in pods.items()
    }
    names, found = {pod.address: name for name, pod in pods.items()}, Reached()
    for source, client in clients.items():
        output, _ = client.communicate(timeout=30)
        assert client.returncode == 0
        found[source] = {target: set() for target in pods if target != source}
        for address, port in json.loads(output):
            if names[address] != source:
                found[source][names[address]].add(port)
    return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Namespace]:
    """It forwards; its queue has each first packet of a connection wait for a verdict."""
    install(print)
    network = Network(bridge="atollpol", subnet="10.253.0.0/24", pods="10.246.0.0/16")
    network.up()
    try:
        with Namespace("node", 0, network, tmp_path) as made:
            sh(*made.inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            # kube-network-policies does the same by nftables, which needs CONFIG_NFT_QUEUE. This needs the older
            # CONFIG_NETFILTER_XT_TARGET_NFQUEUE, which more kernels have. The verdicts are its own in either case.
            rule = ("-m", "conntrack", "--ctstate", "NEW", "-j", "NFQUEUE", "--queue-num", str(QUEUE))
            sh(*made.inside, "iptables", "-t", "mangle", "-A", "FORWARD", *rule)
            yield made
    finally:
        network.down()


@pytest.fixture
def plane(node: Namespace, tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path / "plane", address=node.network.host) as started:
        yield started


def register(plane: ControlPlane, pods: Mapping[str, Pod]) -> None:
    """Tells the API server of them, as scheduler and kubelet would."""
    api = Api(plane)
    plane.kubectl("wait", "--for=create", "namespace/kube-system", "--timeout=30s")
    for namespace in {namespace for namespace, _ in PODS.values()}:
        if namespace != "kube-system":
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, "")
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
    spec = {"nodeName": "node", "containers": [{"name": "main", "image": "none"}]}
    for index, (name, pod) in enumerate(pods.items()):
        namespace, labels = PODS[name]
        meta = {"name": f"pod-{index}", "labels": dict(labels)}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, namespace)
        status = {"phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}]}
        api.patch("Pod", namespace, meta["name"], {"status": status}, "/status")


def enforce(plane: ControlPlane, node: Namespace, folder: Path) -> subprocess.Popen[bytes]:
    """Runs kube-network-policies on the node, with a service account as in a pod, and waits until it takes packets.

    It ends with "mismatched sequence" if a packet arrives between its requests to configure the queue.
    """
    account = ("kube-system", "kube-network-policies")
    plane.kubectl("-n", account[0], "create", "serviceaccount", account[1])
    watched = "--resource=pods,namespaces,networkpolicies.networking.k8s.io"
    plane.kubectl("create", "clusterrole", account[1], "--verb=list,watch", watched)
    granted = (f"--clusterrole={account[1]}", f"--serviceaccount={':'.join(account)}")
    plane.kubectl("create", "clusterrolebinding", account[1], *granted)
    (folder / "token").write_text(plane.kubectl("-n", account[0], "create", "token", account[1]))
    mounted = "/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f"mount -t tmpfs none /run && mkdir -p {mounted} && cp {folder}/token {plane.folder}/pki/ca.crt {mounted}"
        f" && exec {find('kube-network-policies')} --hostname-override=node --nfqueue-id={QUEUE}"
    )
    address = {"KUBERNETES_SERVICE_HOST": plane.address, "KUBERNETES_SERVICE_PORT": str(plane.port)}
    process = spawn([*node.inside, "sh", "-c", script], folder / "kube-network-policies.log", address)
    queues = Path(f"/proc/{process.pid}/net/netfilter/nfnetlink_queue")
    try:
        wait_for("the queue", lambda: configured(queues.read_text()), 30)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def configured(queues: str) -> bool:
    """Whether the queue copies packets. Columns: queue, port of its owner, waiting packets, copy mode, …"""
    rows = [row.split() for row in queues.splitlines()]
    return any(row[0] == str(QUEUE) and int(row[3]) > 0 for row in rows)


def until(pods: Mapping[str, Pod], wanted: Reached, log: Path) -> None:
    """Waits until these ports and no others are reached."""
    deadline = time.monotonic() + 60
    while (found := reach(pods)) != wanted:
        wrong: dict[str, Any] = {
            f"{source} to {target}": sorted(found[source][target] ^ ports)
            for source, targets in wanted.items()
            for target, ports in targets.items()
            if found[source][target] != ports
        }
        assert time.monotonic() < deadline, f"{wrong}\n{log.read_text()[-3000:]}"


def test_enforced_policies_let_in_who_is_documented_and_nobody_else(
    node: Namespace, plane: ControlPlane, tmp_path: Path
) -> None:
    with ExitStack() as held:
        pods = {name: attach(held, node, index) for index, name in enumerate(PODS)}
        register(plane, pods)
        log = tmp_path / "kube-network-policies.log"
        held.callback(held.enter_context(enforce(plane, node, tmp_path)).kill)
        everything = {one: {other: {*PORTS} for other in pods if other != one} for one in pods}
        until(pods, everything, log)
        plane.kubectl("label", "namespace", "monitoring", "atoll.dev/metrics=true")
        plane.kubectl("-n", "runs", "apply", "-f", str(ROOT / "manifests" / "networkpolicies.yaml"))
        allowed = {
            source: {
                target: {port for port in ports if target not in OPEN or source in OPEN[target].get(port, ())}
                for target, ports in targets.items()
            }
            for source, targets in everything.items()
        }
        until(pods, allowed, log)
