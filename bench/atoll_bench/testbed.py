"""A real control plane with fake nodes, and the operator as a process with the rights of its chart."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from atoll_bench import cores
from atoll_bench.client import Client, Object, until, url
from atoll_bench.figures import say
from atoll_bench.process import Operator
from atoll_bench.shapes import Shape
from atoll_cli.errors import CommandError
from atoll_local.controlplane import CONTROL_PROGRAMS, ControlPlane
from atoll_local.kubectl import ESTABLISHED
from atoll_local.kwok import Kwok, node, tpu_node
from atoll_local.paths import cluster_wide
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
KUBECONFIG = "operator.kubeconfig"
CUT = 'apiserver_terminated_watchers_total{group="",resource="pods"}'
QUIET_SECONDS = 120.0
QUIET_SHARE = 0.3
"""Share of a core that an idle process may use. The leases of 500 nodes take up to 0.25 in the API server."""


@dataclass
class Testbed:
    """The control plane, its fake nodes, and two clients."""

    folder: Path
    plane: ControlPlane
    kwok: Kwok
    token: str
    """The operator's, which may read its metrics too."""
    admin: Client
    """Has all rights and is not throttled."""
    bare: Client
    """Has the operator's rights and number of connections, and is throttled like it."""
    _shape: Shape | None = None
    _namespace: str = ""

    async def prepare(self, shape: Shape, namespace: str) -> None:
        """Makes a namespace on nodes of this shape, in place of the namespace before, whose operator must have ended.
        Raises `CommandError` if that is not gone after five minutes."""
        if self._namespace:
            await self._remove_namespace(self._namespace)
        self._namespace = namespace
        if shape != self._shape:
            await self._replace_nodes(shape)
        await self._make_namespace(namespace)

    async def _replace_nodes(self, shape: Shape) -> None:
        """One fake node for each of the shape's node pools."""
        if self._shape is not None:
            await asyncio.to_thread(self.kwok.remove, self._shape.node_names)
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
        await asyncio.to_thread(self.kwok.add, nodes)
        self._shape = shape

    async def _make_namespace(self, name: str) -> None:
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
        await until(
            f"{name} has a service account",
            lambda: self.admin.call("GET", url("serviceaccounts", name, "default"), missing=True),
            READY_SECONDS,
            interval=0.1,
        )

    async def _remove_namespace(self, name: str) -> None:
        for kind in ("trainingruns", "learnerunits"):
            await self.admin.call("DELETE", url(kind, name), {"propagationPolicy": "Background"})
        now = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        # The API server would time out if it deleted 11,520 pods at once.
        while (await self.admin.call("DELETE", f"{url('pods', name)}?limit={PAGE}", now)).get("items"):
            pass
        path = f"/api/v1/namespaces/{name}"
        await self.admin.call("DELETE", path)
        await self.admin.call("DELETE", f"/api/v1/persistentvolumes/{name}-journal", missing=True)

        async def gone() -> bool:
            return not await self.admin.call("GET", path, missing=True)

        await until(f"namespace {name} is gone", gone, EMPTY_SECONDS, interval=0.5)

    def operator(self, namespace: str, feed_port: int) -> Operator:
        """An operator for this namespace, not yet started."""
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "KUBECONFIG": str(self.folder / KUBECONFIG),
            "TMPDIR": str(self.folder),
            "ATOLL_NAMESPACES": namespace,
            "ATOLL_LEASE_NAMESPACE": SYSTEM,
            "ATOLL_RUNTIME_IMAGE": "atoll.dev/runtime:bench",
            "ATOLL_SYNCER_URL": f"https://127.0.0.1:{feed_port}/{{namespace}}/{{run}}/{{shard}}",
        }
        return Operator(environment, self.token, Daemon(namespace, self.folder))

    async def quiet(self, operator: int | None = None) -> None:
        """Waits until the control plane, and the operator of this pid, are idle. Raises `CommandError` after two
        minutes."""
        deadline = time.monotonic() + QUIET_SECONDS
        while True:
            before, start = self.used(operator), time.monotonic()
            await asyncio.sleep(1.0)
            now, seconds = self.used(operator), time.monotonic() - start
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

    def used(self, operator: int | None = None) -> dict[str, float]:
        """CPU seconds so far of each process of the control plane, of the operator of this pid, of this process, and of
        the machine."""
        found = {"bench": cores.used(os.getpid()), "machine": cores.busy()}
        for name in (*CONTROL_PROGRAMS, "kwok"):
            pid = Daemon(name, self.folder / "plane/run").pid()
            if pid is None:
                raise CommandError(f"{name} has ended")
            found[name] = cores.used(pid)
        return found | ({} if operator is None else {"operator": cores.used(operator)})


@asynccontextmanager
async def testbed(folder: Path, scheduler_qps: int | None) -> AsyncIterator[Testbed]:
    """Starts a control plane with the operator's objects. It ends with the context."""
    keys = folder / "plane/pki"
    plane = ControlPlane(
        folder / "plane", controllers=True, fast_failure=False, scheduler_qps=scheduler_qps, progress=say
    )
    with plane, Kwok(plane) as kwok:
        _install(plane, folder)
        kwok.add([node(SYNCER_NODE)])
        token = plane.kubectl("-n", SYSTEM, "create", "token", "atoll-operator", "--duration=24h").strip()
        _write_kubeconfig(folder / KUBECONFIG, plane, token)
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        own = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        async with (
            Client(plane.server, context, 256) as admin,
            Client(plane.server, own, CONNECTIONS, token) as bare,
        ):
            yield Testbed(folder, plane, kwok, token, admin, bare)


def _install(plane: ControlPlane, folder: Path) -> None:
    try:
        overlay = cluster_wide(folder)
    except FileNotFoundError as error:
        raise CommandError(f"the operator's manifests are needed: {error}") from error
    for arguments in (
        ["apply", "--server-side", "-k", str(overlay)],
        ["create", "clusterrolebinding", "metrics-reader", METRICS_READER, f"--group={ACCOUNTS}"],
        ["wait", ESTABLISHED, "crd", "--all", "--timeout=30s"],
        # The measured operator is a local process; the Deployment of the manifests has no image here.
        ["-n", SYSTEM, "scale", "deployment", "--all", "--replicas=0"],
    ):
        plane.kubectl(*arguments)


def _write_kubeconfig(path: Path, plane: ControlPlane, token: str) -> None:
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
