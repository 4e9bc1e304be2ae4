"""What `atoll demo` does to a cluster that exists, on a real API server with the real helm: nothing but its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atoll_cli.demo import installation
from atoll_cli.demo.installation import Chart, Installation
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.kubectl import Kubectl
from atoll_local.controlplane import CONTEXT, ControlPlane
from atoll_local.kubectl import ESTABLISHED
from atoll_local.programs import find

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build the API server, and helm
]
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "atoll"


@dataclass
class Cluster:
    """A place, by its programs."""

    helm: Path
    kubectl: Kubectl
    replaces: bool = False
    stays: bool = True
    reached: bool = True
    runtime_environment: Mapping[str, str] = field(default_factory=lambda: {"A": "b"})
    bucket_environment: Mapping[str, str] = field(default_factory=dict)

    def make_installation(self, demo: str, **changes: Any) -> Installation:
        return Installation(self, Chart(path=CHART, **changes), demo)  # type: ignore[arg-type]

    def release(self, *arguments: str) -> str:
        command = [str(self.helm), *arguments, "--namespace=atoll-system"]
        command += [f"--kubeconfig={self.kubectl.kubeconfig}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout

    def revisions(self) -> list[str]:
        """Of the release `atoll`."""
        return [each["revision"] for each in json.loads(self.release("list", "--output=json"))]

    def label(self, namespace: str, key: str) -> str | None:
        labels = json.loads(self.kubectl.run("get", "namespace", namespace, "-o", "json"))["metadata"][
            "labels"
        ]
        value: str | None = labels.get(key)
        return value

    def has(self, *what: str) -> bool:
        return bool(self.kubectl.run("get", *what, "--ignore-not-found", "-o", "name").strip())


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With controllers, so that a deleted namespace goes; without a node, so that no operator comes up."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), controllers=True) as started:
        yield started


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    """Nothing of Atoll but its definitions, perhaps."""
    kubectl = Kubectl(program=find("kubectl"), kubeconfig=plane.kubeconfig, context=CONTEXT)
    one = Cluster(helm=find("helm"), kubectl=kubectl)
    yield one
    one.release("uninstall", "atoll", "--ignore-not-found")
    kubectl.run("delete", "namespace", "atoll-system", "atoll-demo", "--ignore-not-found", timeout=180)
    if one.has("crd", "trainingruns.atoll.dev"):
        kubectl.run("delete", "trainingruns", "--all", "-n", "default")


def demo(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "atoll_cli",
        "demo",
        "--context",
        CONTEXT,
        "--bucket",
        "none",
        "--operator-image",
        "none/operator:0",
        "--runtime-image",
        "none/runtime:0",
        *arguments,
    ]
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubectl.kubeconfig),
        "ATOLL_KUBECTL": str(cluster.kubectl.program),
        "ATOLL_HELM": str(cluster.helm),
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_an_atoll_in_production_outlives_a_demo(cluster: Cluster) -> None:
    cluster.release(
        "install", "atoll", str(CHART), "--create-namespace", '--set-json=runtime.env={"OURS":"1"}'
    )
    done = demo(cluster)
    assert done.returncode == 2
    assert "a release 'atoll' in 'atoll-system' already" in done.stderr
    assert cluster.revisions() == ["1"]
    assert json.loads(cluster.release("get", "values", "atoll", "--output=json"))["runtime"]["env"] == {
        "OURS": "1"
    }
    assert cluster.has("deployment", "atoll-operator", "-n", "atoll-system")
    assert not cluster.has("namespace", "atoll-demo")


def test_runs_whose_operator_is_away_are_not_taken_up(cluster: Cluster) -> None:
    cluster.kubectl.run("apply", "--server-side", "-k", str(ROOT / "crds"))
    cluster.kubectl.run("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
    cluster.kubectl.run(
        "apply", "-n", "default", "-f", str(ROOT / "manifests" / "samples" / "quickstart.yaml")
    )
    done = demo(cluster)
    assert done.returncode == 2
    assert f"the context '{CONTEXT}' has a TrainingRun in 'default' already" in done.stderr
    assert not cluster.has("namespace", "atoll-system")


def test_an_operator_that_does_not_come_up_is_removed_with_all_that_was_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "OPERATOR_READY", 3)
    one = cluster.make_installation("one")
    with pytest.raises(CommandError, match="helm install failed"):
        one.make()
    assert cluster.revisions() == ["1"]
    assert cluster.label("atoll-demo", "pod-security.kubernetes.io/enforce") == "restricted"
    with pytest.raises(UsageError, match="a namespace 'atoll-demo' and a release 'atoll' in 'atoll-system'"):
        cluster.make_installation("another").make()
    cluster.make_installation("another").remove()
    assert cluster.revisions() == ["1"], "another demo's"
    one.remove()
    assert cluster.revisions() == []
    assert not cluster.has("namespace", "atoll-demo")
    assert not cluster.has("namespace", "atoll-system")
    assert not cluster.has("clusterrole", "atoll-operator")


def test_a_namespace_that_was_there_before_stays_as_it_was(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "OPERATOR_READY", 3)
    cluster.kubectl.run("create", "namespace", "atoll-system")
    one = cluster.make_installation(
        "one", operator_image="registry/operator:7", runtime_image="registry/runtime:8"
    )
    with pytest.raises(CommandError, match="helm install failed"):
        one.make()
    values = json.loads(cluster.release("get", "values", "atoll", "--output=json"))
    assert values["image"] == {"repository": "registry/operator", "tag": "7"}
    assert values["runtime"] == {"image": {"repository": "registry/runtime", "tag": "8"}, "env": {"A": "b"}}
    one.remove()
    assert cluster.has("namespace", "atoll-system")
    assert cluster.label("atoll-system", "pod-security.kubernetes.io/enforce") is None
    assert cluster.revisions() == []


def test_a_cluster_of_the_demos_own_has_what_stands_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "OPERATOR_READY", 3)
    cluster.replaces = True
    cluster.release("install", "atoll", str(CHART), "--create-namespace")
    cluster.kubectl.run("create", "namespace", "atoll-demo")
    cluster.kubectl.run("create", "configmap", "old", "-n", "atoll-demo")
    one = cluster.make_installation("one")
    with pytest.raises(CommandError, match="helm upgrade failed"):
        one.make()
    assert cluster.revisions() == ["2"]
    assert not cluster.has("configmap", "old", "-n", "atoll-demo")
    one.remove()
    assert cluster.revisions() == []
    assert not cluster.has("namespace", "atoll-demo")


def test_a_fresh_cluster_of_the_demos_own_is_left_without_an_atoll(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "OPERATOR_READY", 3)
    cluster.replaces = True
    one = cluster.make_installation("one")
    with pytest.raises(CommandError, match="helm upgrade failed"):
        one.make()
    assert cluster.revisions() == ["1"]
    one.remove()
    assert cluster.revisions() == []
    assert not cluster.has("namespace", "atoll-system")


def test_nothing_is_removed_before_anything_was_made(cluster: Cluster) -> None:
    cluster.replaces = True
    cluster.release("install", "atoll", str(CHART), "--create-namespace")
    cluster.kubectl.run("create", "namespace", "atoll-demo")
    cluster.make_installation("one").remove()
    assert cluster.revisions() == ["1"]
    assert cluster.has("namespace", "atoll-demo")
