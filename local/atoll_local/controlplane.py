"""etcd and kube-apiserver, with controller-manager and scheduler on request; needs no root and no node."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import ssl
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from atoll_local.errors import ClusterError
from atoll_local.kubectl import kubectl
from atoll_local.pki import Authority
from atoll_local.process import Daemon, Startable
from atoll_local.programs import Progress, find_all, silent

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_API = "10.96.0.1"
CONTEXT = "atoll"
"""Name of the kubeconfig's context."""
KUBECTL_SECONDS = 120.0
"""Time-out of one command, which may create hundreds of nodes."""
PORTS = range(20000, 30000)
CONTROL_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a free TCP port below 32768. The kernel assigns the ports from there on to outgoing connections, which
    could take one before the server listens. Raises `ClusterError` if none of a hundred was free."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
    raise ClusterError(f"none of 100 ports from {PORTS.start} to {PORTS.stop - 1} of {address} was free")


@dataclass(eq=False)
class ControlPlane(Startable):
    """A real API server under `folder`; use it as a context manager, or `start` and `stop`."""

    folder: Path
    _: KW_ONLY
    address: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    controllers: bool = False
    fast_failure: bool = True
    scheduler_qps: int | None = None
    """Requests per second of the scheduler; its default is 50, and 100 in a burst."""
    progress: Progress = silent
    authority: Authority | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.port = self.port or free_port(self.address)
        self.kubeconfig = self.folder / "kubeconfig"
        self._daemons = {name: Daemon(name, self.folder / "run") for name in CONTROL_PROGRAMS}

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it is ready; about 4 s on two cores. Raises `ClusterError`, which names the log, if
        a part did not become ready, and `HostError` if a program cannot be obtained."""
        names = CONTROL_PROGRAMS if self.controllers else CONTROL_PROGRAMS[:2]
        self._programs = {name: str(path) for name, path in find_all(names, self.progress).items()}
        self.authority = authority = Authority(self.folder / "pki")
        hosts = (
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        )
        self._serving = authority.issue(
            "apiserver", "kube-apiserver", hosts=(*hosts, "localhost", "127.0.0.1", self.address, SERVICE_API)
        )
        self._kubelet_client = authority.issue(
            "kubelet-client", "kube-apiserver-kubelet-client", "atoll:kubelet-client"
        )
        self._service_account = authority.issue("service-account", "service-accounts")
        admin = authority.issue("admin", "kubernetes-admin", "system:masters")
        authority.kubeconfig(self.kubeconfig, self.server, CONTEXT, admin)
        self._admin = admin
        self._etcd_port = free_port()
        self._start_etcd()
        self.start_apiserver()
        if self.controllers:
            self._start_controllers(authority)

    def kubectl(self, *arguments: str, body: Mapping[str, Any] | None = None) -> str:
        """Output of an administrator's `kubectl`; `body` is its standard input, as JSON. Raises `ClusterError` if the
        API server refused, or did not answer in time."""
        stdin = None if body is None else json.dumps(body)
        return kubectl(self.kubeconfig, *arguments, timeout=KUBECTL_SECONDS, stdin=stdin)

    def stop(self) -> None:
        """Kills every part, because with SIGTERM the API server takes seconds."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self._daemons[name].stop(signal.SIGKILL)

    def stop_apiserver(self) -> None:
        self._daemons["kube-apiserver"].stop(signal.SIGKILL)

    def _start_etcd(self) -> None:
        peer = free_port()
        client = f"http://127.0.0.1:{self._etcd_port}"
        daemon = self._daemons["etcd"]
        daemon.start(
            [
                self._programs["etcd"],
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ]
        )
        daemon.await_answer(f"{client}/health", 30)

    def start_apiserver(self) -> None:
        """Starts kube-apiserver and waits for /readyz."""
        daemon = self._daemons["kube-apiserver"]
        tolerations = [
            "--default-not-ready-toleration-seconds=3",
            "--default-unreachable-toleration-seconds=3",
        ]
        ca = str(self.folder / "pki" / "ca.crt")
        daemon.start(
            [
                self._programs["kube-apiserver"],
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                f"--bind-address={self.address}",
                f"--advertise-address={self.address}",
                f"--secure-port={self.port}",
                f"--tls-cert-file={self._serving.cert}",
                f"--tls-private-key-file={self._serving.key}",
                f"--client-ca-file={ca}",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={self._service_account.cert}",
                f"--service-account-signing-key-file={self._service_account.key}",
                f"--service-cluster-ip-range={SERVICE_RANGE}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                f"--kubelet-certificate-authority={ca}",
                f"--kubelet-client-certificate={self._kubelet_client.cert}",
                f"--kubelet-client-key={self._kubelet_client.key}",
                "--kubelet-preferred-address-types=InternalIP",
                "--allow-privileged=true",
                "--endpoint-reconciler-type=lease",
                *(tolerations if self.fast_failure else ()),
            ]
        )
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(self._admin.cert, self._admin.key)
        daemon.await_answer(f"{self.server}/readyz", 60, context)

    def _start_controllers(self, authority: Authority) -> None:
        fast = ("--node-monitor-grace-period=8s", "--node-monitor-period=1s") if self.fast_failure else ()
        self._start_controller(
            authority,
            "kube-controller-manager",
            f"--service-account-private-key-file={self._service_account.key}",
            f"--root-ca-file={authority.cert}",
            "--use-service-account-credentials=true",
            *fast,
        )
        qps = self.scheduler_qps
        pace = () if qps is None else (f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps}")
        self._start_controller(authority, "kube-scheduler", *pace)

    def _start_controller(self, authority: Authority, name: str, *arguments: str) -> None:
        pair = authority.issue(name, f"system:{name}", f"system:{name}")
        config = authority.kubeconfig(self.folder / "pki" / f"{name}.conf", self.server, CONTEXT, pair)
        kinds = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        self._daemons[name].start(
            [
                self._programs[name],
                *(f"--{kind}={config}" for kind in kinds),
                "--bind-address=127.0.0.1",
                f"--secure-port={free_port()}",
                "--leader-elect=false",
                *arguments,
            ]
        )
