"""`kubectl apply -k manifests` and every sample on a real API server, and what the operator may do there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import ESTABLISHED
from atoll_local.programs import find

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build the API server
]
ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
OPERATOR = "system:serviceaccount:atoll-system:atoll-operator"
Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl on an API server that has the kustomize base."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        program = str(find("kubectl"))

        def call(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
            command = [program, f"--kubeconfig={plane.kubeconfig}", *arguments]
            return subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=60, check=False
            )

        applied = call("apply", "--server-side", "-k", str(ROOT / "manifests"))
        assert applied.returncode == 0, applied.stderr
        established = call("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
        assert established.returncode == 0, established.stderr
        yield call


def test_there_are_three_samples_at_least() -> None:
    assert len(SAMPLES) >= 3


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_takes_the_sample(kubectl: Kubectl, sample: Path) -> None:
    done = kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(sample))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_the_operators_pod_meets_restricted(kubectl: Kubectl) -> None:
    found = kubectl("-n", "atoll-system", "get", "deployment", "atoll-operator", "-o", "json")
    spec = json.loads(found.stdout)["spec"]["template"]["spec"]
    account = kubectl("-n", "atoll-system", "create", "serviceaccount", "default")
    assert account.returncode == 0 or "already exists" in account.stderr
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    done = kubectl("-n", "atoll-system", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("watch", "trainingruns.atoll.dev", True),
        ("update", "trainingruns.atoll.dev/status", True),
        ("update", "trainingruns.atoll.dev", False),
        ("patch", "trainingruns.atoll.dev", False),
        ("create", "trainingruns.atoll.dev", False),
        ("create", "learnerunits.atoll.dev", True),
        ("update", "learnerunits.atoll.dev/finalizers", True),
        ("create", "pods", True),
        ("delete", "pods", True),
        ("create", "pods/exec", False),
        ("get", "secrets", True),
        ("create", "secrets", True),
        ("watch", "secrets", True),
        ("deletecollection", "secrets", False),
        ("update", "configmaps", False),
        ("patch", "statefulsets.apps", True),
        ("create", "deployments.apps", False),
        ("delete", "persistentvolumeclaims", False),
        ("list", "nodes", True),
        ("patch", "nodes", False),
        ("create", "clusterroles.rbac.authorization.k8s.io", False),
        ("create", "serviceaccounts/token", False),
    ],
)
def test_the_operator_may_do_what_it_needs_and_no_more(
    kubectl: Kubectl, verb: str, resource: str, allowed: bool
) -> None:
    resource, _, subresource = resource.partition("/")
    extra = [f"--subresource={subresource}"] if subresource else []
    done = kubectl("auth", "can-i", verb, resource, *extra, f"--as={OPERATOR}", "-n", "anywhere")
    assert done.stdout.strip() == ("yes" if allowed else "no"), done.stderr
