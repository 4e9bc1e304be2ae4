"""A real API server, a test that plays kubelet and syncer, and the operator as a real process."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver import Api, Refusal, install, with_token
from control_bench import Bench
from held_ports import held_ports
from holding_gate import HoldingGate
from operator_process import Operator
from played_kubelet import Kubelet
from played_syncers import Syncers

from atoll_local.controlplane import CONTROL_PROGRAMS, ControlPlane
from atoll_local.errors import HostError
from atoll_local.kwok import Kwok
from atoll_local.programs import find, find_all, silent

NEEDED = {
    "plane": ("etcd", "kube-apiserver", "kubectl"), "control": ("kube-controller-manager",), "Kwok": ("kwok",),
    "controlled": (*CONTROL_PROGRAMS, "kubectl", "kwok"), "ControlPlane": (*CONTROL_PROGRAMS, "kubectl"),
    "Kueue": ("kueue",), "FakeGcs": ("fake-gcs-server",), "narrow": ("helm",), "find": ("helm", "kubectl"),
    "enforce": ("kube-network-policies",),
}  # fmt: skip
"""Programs behind the fixtures and imports of a test."""
NUMBERS = itertools.count(1)
END_SECONDS = 20


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder. One without a time limit gets 15 min: clusters start late on a busy machine."""
    item.add_marker("control")
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(900))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what does not exist yet; this may take minutes, which must not count towards a test's time limit."""
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


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver with our kustomize base applied."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        install(started)
        yield started


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Kwok]]:
    """Another one with the real controllers and scheduler, patient with nodes that a busy machine lets renew late."""
    folder = tmp_path_factory.mktemp("controlled")
    with ControlPlane(folder, controllers=True, fast_failure=False) as started:
        install(started)
        with Kwok(started) as kwok:
            yield started, kwok


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


@pytest.fixture(scope="session")
def operator_kubeconfig(plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a token of the service account that the kustomize base binds to the operator's role."""
    return with_token(plane, api, tmp_path_factory.mktemp("operator") / "kubeconfig")


def _environment(kubeconfig: Path, namespace: str, health: int, metrics: int) -> dict[str, str]:
    return {
        # Of this tree, also where another one is installed.
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "KUBECONFIG": str(kubeconfig),
        "TMPDIR": str(kubeconfig.parent),  # for files of the client that a killed process leaves behind
        "ATOLL_NAMESPACES": namespace,
        "ATOLL_RUNTIME_IMAGE": "atoll.dev/runtime:test",
        "ATOLL_HEALTH_PORT": str(health),
        "ATOLL_METRICS_PORT": str(metrics),
    }


@contextlib.contextmanager
def controllers(plane: ControlPlane, folder: Path, *names: str) -> Iterator[None]:
    """Runs these alone, with Kubernetes' own time-outs; `folder` gets their log."""
    with (folder / f"{names[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                find("kube-controller-manager"), f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false",
                f"--controllers={','.join(names)}", "--secure-port=0",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait(END_SECONDS)


@pytest.fixture
def control(plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts real controllers of Kubernetes by their names, for the rest of the test."""
    with contextlib.ExitStack() as held:
        yield lambda *names: held.enter_context(controllers(plane, tmp_path, *names))


@pytest.fixture
def settle(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """Makes a namespace of any control plane with an operator, whose log may hold no traceback in the end.

    Its arguments: the control plane; the class of the bench; the operator's service account.
    """

    @contextlib.contextmanager
    def settled(plane: ControlPlane, kind: type[Bench], account: str = "atoll-operator") -> Iterator[Bench]:
        api, namespace = Api(plane), f"settled-{next(NUMBERS)}"
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, "")
        kubeconfig = with_token(plane, api, tmp_path / "kubeconfig", account)
        with held_ports(2) as ports:
            operator = Operator(_environment(kubeconfig, namespace, *ports), tmp_path / "operator.log")
            with operator:
                yield kind(api, namespace, operator=lambda _: operator)
        assert "Traceback" not in operator.log.read_text()

    return settled


@pytest.fixture
def bench(
    api: Api, kubelet: Kubelet, syncers: Syncers, operator_kubeconfig: Path, tmp_path: Path
) -> Iterator[Bench]:
    """A fresh namespace under Pod Security `restricted`, without an operator."""
    namespace = f"test-{next(NUMBERS)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    api.create(body, "")
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
    kubelet.namespaces.add(namespace)
    with contextlib.ExitStack() as held:

        def start(of: str, **changes: str) -> Operator:
            own = f"{syncers.address}/{{namespace}}/{{run}}"
            environment = {
                **_environment(operator_kubeconfig, of, *held.enter_context(held_ports(2))),
                "ATOLL_RUNTIME_ENV": '{"STORAGE_EMULATOR_HOST": "http://10.0.0.1:4443"}',
                "ATOLL_POLL_SECONDS": "0.2",
                "ATOLL_SYNCER_URL": f"{own}/{{shard}}",
                "ATOLL_EVALUATOR_URL": f"{own}/evaluator",
                **changes,
            }
            log = tmp_path / f"{namespace}-operator-{next(NUMBERS)}.log"
            return held.enter_context(Operator(environment, log))

        yield Bench(api, namespace, kubelet, syncers, start)
    kubelet.namespaces.discard(namespace)
    for kind in ("TrainingRun", "LearnerUnit", "StatefulSet", "Pod"):
        for item in api.list(kind, namespace):
            with contextlib.suppress(Refusal):
                api.delete(kind, namespace, item["metadata"]["name"], 0 if kind == "Pod" else None)


@pytest.fixture
def gate(plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[HoldingGate]:
    assert plane.authority is not None
    pair = plane.authority.issue("holding-gate", "holding-gate", hosts=("127.0.0.1",))
    one = HoldingGate(pair, operator_kubeconfig, plane.authority.cert.read_text(), tmp_path / "through-gate")
    yield one
    one.close()
