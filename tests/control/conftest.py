"""A real API server, a test that plays kubelet and syncer, and the operator as a real process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import http.client
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from controllers import controllers
from held_ports import held_ports

from atoll_local.controlplane import CONTROL_PROGRAMS, ControlPlane
from atoll_local.errors import HostError
from atoll_local.kubectl import ESTABLISHED
from atoll_local.programs import find, find_all, silent

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]
PATHS = {
    "TrainingRun": "/apis/atoll.dev/v1alpha1/namespaces/{ns}/trainingruns",
    "LearnerUnit": "/apis/atoll.dev/v1alpha1/namespaces/{ns}/learnerunits",
    "StatefulSet": "/apis/apps/v1/namespaces/{ns}/statefulsets",
    "Pod": "/api/v1/namespaces/{ns}/pods",
    "Service": "/api/v1/namespaces/{ns}/services",
    "ConfigMap": "/api/v1/namespaces/{ns}/configmaps",
    "Secret": "/api/v1/namespaces/{ns}/secrets",
    "Event": "/api/v1/namespaces/{ns}/events",
    "ServiceAccount": "/api/v1/namespaces/{ns}/serviceaccounts",
}


NEEDED = {
    "plane": ("etcd", "kube-apiserver", "kubectl"),
    "collector": ("kube-controller-manager",),
    "controllers": ("kube-controller-manager",),
    "ControlPlane": (*CONTROL_PROGRAMS, "kubectl"),
    "Kwok": ("kwok",),
    "Kueue": ("kueue",),
    "FakeGcs": ("fake-gcs-server",),
    "narrow": ("helm",),
    "find": ("helm", "kubectl"),
}
"""What a test asks for, or its module imports, to the programs behind it."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what is not there yet: minutes, and many where others keep the machine busy, in no test's time-out."""
    if session.config.option.collectonly:
        return
    asked: set[str] = set()
    for item in session.items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("control"):
            asked |= {*item.fixturenames, *vars(item.module)}
    programs = dict.fromkeys(program for name, some in NEEDED.items() if name in asked for program in some)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    with contextlib.suppress(HostError):  # the first test that needs it says so
        find_all(tuple(programs), reporter.write_line if reporter else silent)


class Refusal(Exception):
    """The API server's no; the text is its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The API server, by an administrator's certificate."""

    def __init__(self, plane: ControlPlane) -> None:
        config = yaml.safe_load(plane.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = plane.server
        self.authority = _content(cluster, "certificate-authority")
        self.context = ssl.create_default_context(cadata=self.authority.decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(_content(user, "client-certificate") + b"\n" + _content(user, "client-key"))
            file.flush()
            self.context.load_cert_chain(file.name)
        self._idle: list[http.client.HTTPSConnection] = []
        """Connections that nobody uses now: a new one costs both sides more than most calls."""
        weakref.finalize(self, _close, self._idle)

    def call(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> Object:
        """Tries again for a minute while nobody answers, or asks to come again."""
        data = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + 60
        while True:
            connection = self._connect()
            try:
                connection.request(method, path, data, {"Content-Type": kind})
                with connection.getresponse() as answer:
                    found = dict(json.loads(answer.read()))
            except (OSError, http.client.HTTPException, json.JSONDecodeError):  # the last while it starts
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            self._idle.append(connection)
            if answer.status < 400:
                return found
            # A definition that was just applied, or an API server that is not ready.
            if answer.status not in (429, 503) or time.monotonic() > deadline:
                raise Refusal(answer.status, found["message"])
            time.sleep(0.1)

    def _connect(self) -> http.client.HTTPSConnection:
        with contextlib.suppress(IndexError):  # other threads take from it too
            return self._idle.pop()
        host, port = self.server.removeprefix("https://").split(":")
        return http.client.HTTPSConnection(host, int(port), timeout=30, context=self.context)

    def path(self, kind: str, namespace: str, name: str = "") -> str:
        path = PATHS[kind].format(ns=namespace)
        return f"{path}/{name}" if name else path

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.call("GET", self.path(kind, namespace, name))

    def list(self, kind: str, namespace: str) -> list[Object]:
        return list(self.call("GET", self.path(kind, namespace))["items"])

    def create(self, body: Object, namespace: str, query: str = "") -> Object:
        return self.call("POST", self.path(body["kind"], namespace) + query, body)

    def patch(self, kind: str, namespace: str, name: str, change: Object, subresource: str = "") -> Object:
        path = self.path(kind, namespace, name) + subresource
        return self.call("PATCH", path, change, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, grace: int | None = None) -> Object:
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        return self.call("DELETE", self.path(kind, namespace, name), body)

    def collect(self, kind: str, namespace: str, name: str) -> None:
        """The garbage collector's part: deletes what the operator or the kubelet may have deleted by now."""
        try:
            self.delete(kind, namespace, name)
        except Refusal as refusal:
            if refusal.status != 404:
                raise


def _content(part: Object, key: str) -> bytes:
    if data := part.get(f"{key}-data"):
        return base64.b64decode(data)
    return Path(part[key]).read_bytes()


def _close(connections: list[http.client.HTTPSConnection]) -> None:
    for connection in connections:
        connection.close()


class Kubelet:
    """Binds every pod, says that it runs, and removes it when it is deleted, as kubelet and scheduler would."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = threading.Event()
        self.idle: set[str] = set()
        """Namespaces whose pods nobody runs."""
        self.namespaces: set[str] = set()
        self.scattered: set[str] = set()
        """Namespaces each of whose pods has a node to itself, named after both."""
        self.lost: set[str] = set()
        """Nodes that nobody hears of any more."""
        self._thread = threading.Thread(target=self._work, name="kubelet")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _work(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(Refusal, OSError, http.client.HTTPException):
                pods = self._api.call("GET", "/api/v1/pods")["items"] if self.namespaces - self.idle else []
                for pod in pods:
                    namespace = pod["metadata"]["namespace"]
                    if namespace in self.namespaces - self.idle:
                        self._tend(namespace, pod)

    def _tend(self, namespace: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        with contextlib.suppress(Refusal):
            if pod["spec"].get("nodeName") in self.lost:
                return
            if "deletionTimestamp" in pod["metadata"]:
                self._api.delete("Pod", namespace, name, grace=0)
            elif not pod["spec"].get("nodeName"):
                node = f"{namespace}-{name}" if namespace in self.scattered else "node-1"
                target = {"apiVersion": "v1", "kind": "Node", "name": node}
                binding = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": name},
                    "target": target,
                }
                self._api.call("POST", self._api.path("Pod", namespace, name) + "/binding", binding)
            elif pod["status"]["phase"] == "Pending":
                seen = {"resourceVersion": pod["metadata"]["resourceVersion"]}  # it may have failed since
                self._api.patch("Pod", namespace, name, {"metadata": seen, "status": running()}, "/status")

    def status(self, namespace: str, name: str, status: Object) -> None:
        """What the kubelet reports."""
        self._api.patch("Pod", namespace, name, {"status": status}, "/status")

    def fail(
        self, namespace: str, name: str, exit_code: int = 1, message: str = "", reason: str = "Error"
    ) -> None:
        """The container ends."""
        ended = {
            "exitCode": exit_code, "reason": reason, "message": message, "finishedAt": now(), "startedAt": now(),
        }  # fmt: skip
        self.status(
            namespace,
            name,
            {"phase": "Failed" if exit_code else "Succeeded", **_container({"terminated": ended})},
        )


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _container(state: Object, ready: bool = False) -> Object:
    one = {
        "name": "main", "image": "runtime", "imageID": "", "restartCount": 0, "ready": ready, "state": state,
    }  # fmt: skip
    return {
        "containerStatuses": [one],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }


def running() -> Object:
    return {"phase": "Running", **_container({"running": {"startedAt": now()}}, ready=True)}


class Syncers:
    """One HTTPS server that is every shard of every run's syncer, and every evaluator, by server name, with each run's
    own certificate."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.statuses: dict[str, Object] = {}
        """Path `namespace/run/shard`, or `namespace/run/evaluator`, to the status; absent: 503."""
        self.orders: dict[str, list[int]] = {}
        """Path to the global steps of cuts that were ordered."""
        self.reluctant: set[str] = set()
        """Paths of shards whose cuts come to nothing."""
        self.callers: dict[str, str] = {}
        """Path to the identity that the last caller's certificate showed."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="syncers")
        self._thread.start()
        assert ready.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        base = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        base.verify_mode = ssl.CERT_REQUIRED
        base.sni_callback = self._choose
        application = web.Application()
        application.router.add_get("/{namespace}/{run}/{shard}", self._answer)
        application.router.add_post("/{namespace}/{run}/{shard}", self._save)
        runner = web.AppRunner(application, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=base)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        context = self._contexts.get(name or "")
        if context is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = context
        return None

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/")
        certificate = request.get_extra_info("peercert") or {}
        names = dict(certificate.get("subjectAltName", ()))
        self.callers[path] = names.get("URI", "")
        status = self.statuses.get(path)
        return web.json_response(status) if status is not None else web.Response(status=503)

    async def _save(self, request: web.Request) -> web.Response:
        """An order to save a cut, carried out at once."""
        path = request.path.removeprefix("/")
        status = self.statuses.get(path)
        if status is None:
            return web.Response(status=503)
        step = (await request.json())["cut"]
        self.orders.setdefault(path, []).append(step)
        if path not in self.reluctant:
            status["checkpoint"] = {"newestStep": step, "uri": "gs://bucket/run", "current": True}
        return web.Response(status=202)

    def serve(
        self, namespace: str, run: str, status: Object, certificate_of: tuple[str, str] | None = None
    ) -> None:
        """Starts to answer for a shard of a run, with the run's own certificate or another run's."""
        shard = status.get("shard", 0)
        owner_namespace, owner = certificate_of or (namespace, run)
        host = f"{run}-syncer-{shard}.{run}-syncer.{namespace}.svc"
        self._serve(host, f"{namespace}/{run}/{shard}", status, owner_namespace, f"{owner}-syncer-tls")

    def serve_evaluator(self, namespace: str, run: str, status: Object) -> None:
        """Starts to answer for the run's evaluator."""
        host = f"{run}-evaluator-0.{run}-evaluator.{namespace}.svc"
        self._serve(host, f"{namespace}/{run}/evaluator", status, namespace, f"{run}-evaluator-tls")

    def _serve(self, host: str, path: str, status: Object, namespace: str, secret: str) -> None:
        data = self._api.get("Secret", namespace, secret)["data"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=base64.b64decode(data["ca.crt"]).decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(base64.b64decode(data["tls.crt"]) + b"\n" + base64.b64decode(data["tls.key"]))
            file.flush()
            context.load_cert_chain(file.name)
        self.statuses[path] = status
        self._contexts[host] = context


class Operator:
    """`python -m atoll_operator` with the rights of the chart's service account."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.environment = environment
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def page(self, path: str) -> tuple[int, str]:
        """What it serves to probes and Prometheus; (0, "") while it does not listen."""
        url = f"http://127.0.0.1:{self.environment['ATOLL_HEALTH_PORT']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def figures(self) -> dict[str, float]:
        """Its metrics, name with labels to value."""
        lines = (line.rsplit(" ", 1) for line in self.page("/metrics")[1].splitlines() if line[:1] != "#")
        return {name: float(value) for name, value in lines}

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "atoll_operator"], env=self.environment, stdout=file, stderr=file
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)


class Bench:
    """One namespace, and all that a test needs in it."""

    def __init__(
        self, api: Api, namespace: str, kubelet: Kubelet, syncers: Syncers, start: Callable[..., Operator]
    ) -> None:
        self.api, self.namespace, self.kubelet, self.syncers = api, namespace, kubelet, syncers
        self._start = start

    def operator(self, **environment: str) -> Operator:
        """A further operator for this namespace."""
        return self._start(self.namespace, **environment)

    def get(self, kind: str, name: str) -> Object:
        return self.api.get(kind, self.namespace, name)

    def pods(self, unit: str = "") -> dict[str, Object]:
        """Pods of a unit, or of all, that nobody deletes, by name."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.api.list("Pod", self.namespace)
            if "deletionTimestamp" not in pod["metadata"]
            and (not unit or pod["metadata"]["labels"].get("atoll.dev/unit") == unit)
        }

    def until(self, what: str, check: Callable[[], Any], timeout: float = 60) -> Any:
        """The first true value of `check`; an assertion that shows the namespace after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(Refusal):
                if value := check():
                    return value
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}\n{self.describe()}"
            time.sleep(0.05)

    def describe(self) -> str:
        lines = []
        for kind in ("TrainingRun", "LearnerUnit", "Pod"):
            for item in self.api.list(kind, self.namespace):
                status = item.get("status", {})
                short = {
                    key: status.get(key) for key in ("phase", "message", "incarnation", "gang", "placedGang")
                }
                conditions = {
                    c["type"]: (c["status"], c["reason"])
                    for c in status.get("conditions", [])
                    if "reason" in c
                }
                lines.append(f"{kind} {item['metadata']['name']}: {short} {conditions}")
        return "\n".join(lines)

    def condition(self, kind: str, name: str, condition: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        for item in self.get(kind, name).get("status", {}).get("conditions", []):
            if item["type"] == condition:
                return item["status"], item["reason"], item.get("message", "")
        return "", "", ""

    def run(self, name: str = "r", units: int = 2, **changes: Any) -> Object:
        """Creates a TrainingRun: one pool of single hosts, one of a two-host slice."""
        body = training_run(name, units)
        body["spec"].update(changes)
        return self.api.create(body, self.namespace)

    def report(self, run: Object, phase: str = "Running", **changes: Any) -> Object:
        """A syncer's status in which every unit learns with its incarnation of now."""
        units = {}
        for unit in self.api.list("LearnerUnit", self.namespace):
            if unit["spec"]["run"] == run["metadata"]["name"]:
                units[unit["metadata"]["name"]] = unit_report(unit.get("status", {}).get("incarnation", 1))
        return {
            "runUid": run["metadata"]["uid"], "phase": phase, "globalStep": 10, "targetSteps": 100, "tokens": 5000,
            "loss": 3.25, "tokensPerSecond": 100.0, "quorum": "3/3 (K=1)", "units": units, **changes,
        }  # fmt: skip

    def serve(self, run: Object, **changes: Any) -> Object:
        """Has a shard of the run's syncer answer; returns its status, to be changed in place."""
        name = run["metadata"]["name"]
        self.until("the syncer's certificate", lambda: self.get("Secret", f"{name}-syncer-tls"))
        status = self.report(run, **changes)
        self.syncers.serve(self.namespace, name, status)
        return status

    def settled(self, run: Object, names: list[str]) -> None:
        """All pods of these units exist and are placed."""
        self.until(
            "all gangs are placed",
            lambda: all(
                (status := self.get("LearnerUnit", name).get("status", {})).get("placedGang")
                == status.get("gang", 0)
                != 0
                for name in names
            ),
        )


def unit_report(incarnation: int, **changes: Any) -> Object:
    return {
        "incarnation": incarnation, "hosts": 2, "state": "Learning", "step": 40, "tokens": 900, "loss": 3.5,
        "tokensPerSecond": 50.0, "contributions": 3, "seededStep": 0, "firstMergeTime": time.time(), **changes,
    }  # fmt: skip


def training_run(name: str = "r", units: int = 2) -> Object:
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"preset": "1m"},
            "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
            "target": {"globalSteps": 100},
            "checkpoint": {"uri": "gs://bucket/run"},
            "pools": [
                {"name": "one", "accelerator": "tpu-v5p-slice", "topology": "2x2x1", "units": units},
                {
                    "name": "two", "accelerator": "tpu-v6e-slice", "topology": "2x4",
                    "machineType": "ct6e-standard-4t", "units": 1,
                },
            ],
        },
    }  # fmt: skip


def install(plane: ControlPlane) -> None:
    """Applies our kustomize base, and waits until its definitions are served."""
    plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests"))
    plane.kubectl("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver with our kustomize base applied."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        install(started)
        yield started


@pytest.fixture(scope="session")
def installed() -> Callable[[ControlPlane], None]:
    """`install`, for a module with a control plane of its own."""
    return install


@pytest.fixture(scope="session")
def api(plane: ControlPlane) -> Api:
    return Api(plane)


@pytest.fixture(scope="session")
def kubelet(api: Api) -> Iterator[Kubelet]:
    one = Kubelet(api)
    yield one
    one.close()


@pytest.fixture(scope="session")
def syncers(api: Api) -> Iterator[Syncers]:
    server = Syncers(api)
    yield server
    server.close()


def with_token(plane: ControlPlane, api: Api, path: Path, account: str = "atoll-operator") -> Path:
    """A kubeconfig with the rights of a service account of `atoll-system`."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    answer = api.call("POST", f"/api/v1/namespaces/atoll-system/serviceaccounts/{account}/token", request)
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="session")
def operator_kubeconfig(plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a token of the service account that the kustomize base binds to the operator's role."""
    return with_token(plane, api, tmp_path_factory.mktemp("operator") / "kubeconfig")


def _environment(kubeconfig: Path, namespace: str, port: int) -> dict[str, str]:
    """Of an operator for one namespace."""
    return {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "ATOLL_NAMESPACES": namespace,
        "ATOLL_RUNTIME_IMAGE": "atoll.dev/runtime:test",
        "ATOLL_HEALTH_PORT": str(port),
    }


@pytest.fixture
def collector(plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """The real garbage collector, alone of all controllers."""
    with controllers(plane, tmp_path, "garbage-collector-controller"):
        yield


@pytest.fixture
def employ(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[Operator]]:
    """Starts an operator for a namespace of any control plane; its log may hold no traceback in the end."""

    @contextlib.contextmanager
    def employed(plane: ControlPlane, namespace: str, account: str = "atoll-operator") -> Iterator[Operator]:
        kubeconfig = with_token(plane, Api(plane), tmp_path / "kubeconfig", account)
        with held_ports(1) as [port]:
            operator = Operator(_environment(kubeconfig, namespace, port), tmp_path / "operator.log")
            operator.start()
            try:
                yield operator
            finally:
                operator.kill()
                print(operator.log.read_text()[-6000:])
        assert "Traceback" not in operator.log.read_text()

    return employed


_NAMES = itertools.count(1)


@pytest.fixture
def bench(benches: Callable[[], contextlib.AbstractContextManager[Bench]]) -> Iterator[Bench]:
    """A fresh namespace under Pod Security `restricted`, without an operator."""
    with benches() as one:
        yield one


@pytest.fixture
def benches(
    api: Api, kubelet: Kubelet, syncers: Syncers, operator_kubeconfig: Path, tmp_path: Path
) -> Callable[..., contextlib.AbstractContextManager[Bench]]:
    """Makes benches; its argument makes their operators out of environment and log, `Operator` where not given."""
    return functools.partial(_bench, api, kubelet, syncers, operator_kubeconfig, tmp_path)


@contextlib.contextmanager
def _bench(
    api: Api,
    kubelet: Kubelet,
    syncers: Syncers,
    operator_kubeconfig: Path,
    folder: Path,
    make: Callable[[dict[str, str], Path], Any] = Operator,
) -> Iterator[Bench]:
    namespace = f"test-{next(_NAMES)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.call(
        "POST",
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}},
    )
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
    kubelet.namespaces.add(namespace)
    started: list[Any] = []
    held = contextlib.ExitStack()

    def start(of: str, **changes: str) -> Any:
        environment = {
            **_environment(operator_kubeconfig, of, *held.enter_context(held_ports(1))),
            "ATOLL_RUNTIME_ENV": '{"STORAGE_EMULATOR_HOST": "http://10.0.0.1:4443"}',
            "ATOLL_FEED_SECONDS": "0.2",
            "ATOLL_FEED_URL": f"https://127.0.0.1:{syncers.port}/{{namespace}}/{{run}}/{{shard}}",
            "ATOLL_EVALUATOR_URL": f"https://127.0.0.1:{syncers.port}/{{namespace}}/{{run}}/evaluator",
            **changes,
        }
        operator = make(environment, folder / f"{namespace}-operator-{len(started)}.log")
        started.append(operator)
        operator.start()
        return operator

    try:
        yield Bench(api, namespace, kubelet, syncers, start)
    finally:
        for operator in started:
            if operator.alive:
                operator.kill()
            print(operator.log.read_text()[-6000:])
        held.close()
        kubelet.namespaces.discard(namespace)
        for kind in ("TrainingRun", "LearnerUnit", "StatefulSet"):
            for item in api.list(kind, namespace):
                with contextlib.suppress(Refusal):
                    api.delete(kind, namespace, item["metadata"]["name"])
        for pod in api.list("Pod", namespace):
            with contextlib.suppress(Refusal):
                api.delete("Pod", namespace, pod["metadata"]["name"], grace=0)


NARROW = "atoll-narrow"
APPLY = "application/apply-patch+yaml"
_RIGHTS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


@pytest.fixture
def narrow(bench: Bench, tmp_path: Path) -> Path:
    """A kubeconfig with no rights but those of the chart for the bench's namespace."""
    command = [
        str(find("helm")),
        "template",
        "atoll",
        str(ROOT / "charts" / "atoll"),
        f"--namespace={NARROW}",
    ]
    command += ["--set=crds.enabled=false", f'--set-json=namespaces=["{bench.namespace}"]']
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NARROW}}
    apply = "?fieldManager=test&force=true"
    bench.api.call("PATCH", f"/api/v1/namespaces/{NARROW}{apply}", namespace, APPLY)
    for item in yaml.safe_load_all(done.stdout):
        if item and item["kind"] in _RIGHTS:
            place = _RIGHTS[item["kind"]].format(item["metadata"]["namespace"])
            bench.api.call("PATCH", f"{place}/{item['metadata']['name']}{apply}", item, APPLY)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    account = _RIGHTS["ServiceAccount"].format(NARROW) + "/atoll-operator/token"
    token = bench.api.call("POST", account, request)["status"]["token"]
    bench.until(
        "its rights count",
        lambda: (
            _narrow_may(bench.api, "pods", "", bench.namespace)
            and _narrow_may(bench.api, "leases", "coordination.k8s.io", NARROW)
        ),
    )
    authority = base64.b64encode(bench.api.authority).decode()
    cluster = {"server": bench.api.server, "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "narrow"
    path.write_text(yaml.safe_dump(config))
    return path


def _narrow_may(api: Api, resource: str, group: str, namespace: str) -> bool:
    """Whether the API server has heard of the bindings: its authorizer learns of them by a watch."""
    wanted = {"verb": "create", "resource": resource, "group": group, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{NARROW}:atoll-operator", "resourceAttributes": wanted},
    }
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


class Relay:
    """A way to the API server that can be cut without a word, as by a firewall: connections stay and carry nothing."""

    def __init__(self, server: str, kubeconfig: Path, folder: Path) -> None:
        host, port = server.removeprefix("https://").split(":")
        self._target = host, int(port)
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.kubeconfig = folder / "relayed"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.mend()
        _end(self._listener)
        self._threads[0].join(10)  # there are no more sockets and threads after that
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._carry, args=pair, name="relay")
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture
def relay(plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Relay]:
    one = Relay(plane.server, operator_kubeconfig, tmp_path)
    yield one
    one.close()
