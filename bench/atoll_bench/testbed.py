"""A real control plane with fake nodes, and the operator as a process with the rights of its chart."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from pathlib import Path
from typing import Self

import yaml

from atoll_bench import cores
from atoll_bench.client import Client, Object, url
from atoll_bench.figures import say
from atoll_bench.process import Operator
from atoll_bench.shapes import Shape
from atoll_cli.errors import CommandError
from atoll_local.controlplane import CONTROL_PROGRAMS, ControlPlane, free_port
from atoll_local.kubectl import ESTABLISHED
from atoll_local.kwok import Kwok, node, tpu_node
from atoll_local.paths import source_root
from atoll_local.process import Daemon
from atoll_operator.kube.client import CONNECTIONS, PAGE

SYSTEM = "atoll-system"
ACCOUNTS = f"system:serviceaccounts:{SYSTEM}"
METRICS_READER = f"--clusterrole=atoll-metrics-reader-{SYSTEM}"
READY_SECONDS = 60.0
"""Time limit for the objects that a controller creates in a new namespace."""
EMPTY_SECONDS = 300.0
"""Time limit for deleting a namespace of 2,000 pods."""
SHARE_OF_NODE = 2
"""A fake node has the chips of this many slices, so that a new gang need not wait for the old one's chips. Exclusive
placement still gives each unit its own node pool."""
SYNCER_NODE = "cpu-0"
CUT = 'apiserver_terminated_watchers_total{group="",resource="pods"}'
QUIET_SECONDS = 120.0
QUIET_SHARE = 0.15
"""Share of a core that an idle process may use. The leases of a hundred nodes take a few hundredths of a core in the
API server."""


class Testbed:
    """Use as an async context manager, which ends everything that it started."""

    def __init__(self, folder: Path, scheduler_qps: int | None) -> None:
        self._folder = folder
        self._plane = ControlPlane(
            folder / "plane",
            controllers=True,
            fast_failure=False,
            scheduler_qps=scheduler_qps,
            progress=say,
        )
        self._kwok = Kwok(self._plane)
        self._shape: Shape | None = None
        self._operators: list[Operator] = []
        self.ends = False
        """Whether nothing follows this round, so that its namespace may stay."""
        self.admin: Client
        """Has all rights and is not throttled."""
        self.bare: Client
        """Has the operator's rights and number of connections, and is throttled like it."""

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._start)
            context = self._context()
            keys = self._folder / "plane/pki"
            context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
            self.admin = await Client(self._plane.server, context, connections=256).__aenter__()
            self._token = await self._make_token()
            self._kubeconfig = self._write_kubeconfig(self._token)
            bare = Client(self._plane.server, self._context(), self._token, CONNECTIONS)
            self.bare = await bare.__aenter__()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for operator in self._operators:
            operator.stop(signal.SIGKILL)
        for client in (getattr(self, "admin", None), getattr(self, "bare", None)):
            if client is not None:
                await client.__aexit__()
        self._kwok.stop()
        self._plane.stop()

    def _start(self) -> None:
        self._plane.start()
        self._kwok.start()
        try:
            manifests = str(source_root() / "manifests")
        except FileNotFoundError as error:
            raise CommandError(f"the operator's manifests are needed: {error}") from error
        for arguments in (
            ["apply", "--server-side", "-k", manifests],
            ["apply", "--server-side", "-f", f"{manifests}/cluster-wide/rbac.yaml"],
            ["create", "clusterrolebinding", "metrics-reader", METRICS_READER, f"--group={ACCOUNTS}"],
            ["wait", ESTABLISHED, "crd", "--all", "--timeout=30s"],
            # The measured operator is a local process; the Deployment of the manifests has no image here.
            ["-n", SYSTEM, "scale", "deployment", "--all", "--replicas=0"],
        ):
            self._plane.kubectl(*arguments)
        self._kwok.add([node(SYNCER_NODE)])

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._folder / "plane/pki/ca.crt"))

    async def _make_token(self) -> str:
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/atoll-operator/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 24 * 3600},
        }
        return str((await self.admin.call("POST", path, request))["status"]["token"])

    def _write_kubeconfig(self, token: str) -> Path:
        config = yaml.safe_load(self._plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = self._folder / "operator.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    async def shape(self, shape: Shape) -> None:
        """Replaces the nodes with this shape's node pools, one fake node each."""
        if shape == self._shape:
            return
        if self._shape is not None:
            await asyncio.to_thread(self._kwok.remove, self._shape.node_names)
        nodes = [
            tpu_node(
                name,
                pool=name,
                accelerator=shape.accelerator,
                topology=shape.topology,
                machine=shape.machine,
                chips=4 * shape.hosts * SHARE_OF_NODE,
            )
            for name in shape.node_names
        ]
        await asyncio.to_thread(self._kwok.add, nodes)
        self._shape = shape

    async def make_namespace(self, name: str) -> None:
        """Creates a namespace, and a volume for one syncer's claim."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.admin.call("POST", "/api/v1/namespaces", body)
        volume: Object = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{name}-journal"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/nowhere"},
            },
        }
        await self.admin.call("POST", "/api/v1/persistentvolumes", volume)
        deadline = time.monotonic() + READY_SECONDS
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        while not await self.admin.call("GET", account, missing=True):
            if time.monotonic() > deadline:
                raise CommandError(f"{name} has no service account")
            await asyncio.sleep(0.1)

    async def remove_namespace(self, name: str) -> None:
        """Deletes a namespace and its objects. Its operator must have ended.

        Raises:
            CommandError: it was not gone within five minutes.
        """
        for kind in ("trainingruns", "learnerunits"):
            await self.admin.call("DELETE", url(kind, name), {"propagationPolicy": "Background"})
        now = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        some = (
            f"{url('pods', name)}?limit={PAGE}"  # the API server would time out if it deleted 11,520 at once
        )
        while (await self.admin.call("DELETE", some, now)).get("items"):
            pass
        path = f"/api/v1/namespaces/{name}"
        await self.admin.call("DELETE", path)
        await self.admin.call("DELETE", f"/api/v1/persistentvolumes/{name}-journal", missing=True)
        deadline = time.monotonic() + EMPTY_SECONDS
        while await self.admin.call("GET", path, missing=True):
            if time.monotonic() > deadline:
                raise CommandError(f"namespace {name} was not gone after {EMPTY_SECONDS:.0f} s")
            await asyncio.sleep(0.5)

    def operator(self, namespace: str, feed_port: int) -> Operator:
        """An operator for this namespace, not yet started."""
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "KUBECONFIG": str(self._kubeconfig),
            "TMPDIR": str(self._folder),
            "ATOLL_NAMESPACES": namespace,
            "ATOLL_LEASE_NAMESPACE": SYSTEM,
            "ATOLL_RUNTIME_IMAGE": "atoll.dev/runtime:bench",
            "ATOLL_SYNCER_URL": f"https://127.0.0.1:{feed_port}/{{namespace}}/{{run}}/{{shard}}",
        }
        process = Daemon(f"operator-{len(self._operators)}", self._folder)
        operator = Operator(environment, free_port(), free_port(), self._token, process)
        self._operators.append(operator)
        return operator

    async def quiet(self, pid: int | None = None) -> None:
        """Waits until the control plane, and the operator `pid`, are idle.

        Raises:
            CommandError: not within two minutes.
        """

        def used() -> dict[str, float]:
            return self.used() | ({} if pid is None else {"operator": cores.used(pid)})

        deadline = time.monotonic() + QUIET_SECONDS
        while True:
            before, start = used(), time.monotonic()
            await asyncio.sleep(1.0)
            now, seconds = used(), time.monotonic() - start
            busy = {name: (now[name] - before[name]) / seconds for name in now if name != "machine"}
            if max(busy.values()) < QUIET_SHARE:
                return
            if time.monotonic() > deadline:
                shares = ", ".join(f"{name} {share:.2f}" for name, share in busy.items())
                raise CommandError(f"the cluster did not calm down; shares of a core: {shares}")

    async def watches_cut(self) -> float:
        """How many watches of pods the API server has ended so far because their client was too slow."""
        text = await self.admin.text("/metrics")
        found = [line for line in text.splitlines() if line.startswith(CUT)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def used(self) -> dict[str, float]:
        """CPU seconds so far of each process of the control plane, of this process, and of the machine."""
        found = {"bench": cores.used(os.getpid()), "machine": cores.busy()}
        for name in (*CONTROL_PROGRAMS, "kwok"):
            pid = Daemon(name, self._folder / "plane/run").pid()
            if pid is None:
                raise CommandError(f"{name} has ended")
            found[name] = cores.used(pid)
        return found
