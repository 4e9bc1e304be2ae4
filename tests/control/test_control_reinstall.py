"""Atoll is uninstalled and installed again elsewhere, by the real helm on a real API server; runs stay throughout."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import ESTABLISHED, kubectl
from atoll_local.process import wait_for
from atoll_local.programs import find

pytestmark = [pytest.mark.control, pytest.mark.timeout(900)]  # the first call may have to build programs
ROOT = Path(__file__).resolve().parents[2]
OWNER = "meta.helm.sh/release-namespace"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """With nothing in it."""
    with ControlPlane(tmp_path) as started:
        yield started


def served(plane: ControlPlane, verb: str, resource: str, *namespaces: str) -> set[str]:
    """Those of the namespaces in which the operator of the release in `one` may do this."""

    def may(namespace: str) -> bool:
        user = "--as=system:serviceaccount:one:atoll-operator"
        ask = ("auth", "can-i", verb, resource, user, f"--namespace={namespace}")
        return kubectl(plane.kubeconfig, *ask, check=False) == "yes\n"

    wait_for("the operator's rights", lambda: may("one"), 30)  # the authorizer learns of them by a watch
    return {namespace for namespace in namespaces if may(namespace)}


def test_it_is_installed_again_in_another_namespace_over_definitions_that_stayed(
    plane: ControlPlane, tmp_path: Path
) -> None:
    def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "HOME": str(tmp_path)}
        command = [str(find("helm")), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def owner() -> str:
        definition = json.loads(plane.kubectl("get", "crd", "trainingruns.atoll.dev", "-o", "json"))
        return str(definition["metadata"]["annotations"][OWNER])

    chart = str(ROOT / "charts" / "atoll")
    first = helm("install", "atoll", chart, "--namespace=one", "--create-namespace")
    assert first.returncode == 0, first.stderr
    plane.kubectl("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
    assert served(plane, "get", "secrets", "one", "two") == {"one"}
    assert served(plane, "create", "pods", "one", "two", "default") == {"one"}
    plane.kubectl("apply", "-f", str(ROOT / "manifests" / "samples" / "minimal.yaml"))
    gone = helm("uninstall", "atoll", "--namespace=one")
    assert gone.returncode == 0, gone.stderr
    assert owner() == "one"
    assert not plane.kubectl("get", "validatingadmissionpolicies", "-o", "name")

    refused = helm("install", "atoll", chart, "--namespace=two", "--create-namespace")
    assert refused.returncode != 0 and OWNER in refused.stderr
    options = ("--namespace=two", "--create-namespace", "--take-ownership")
    again = helm("upgrade", "--install", "atoll", chart, *options)
    assert again.returncode == 0, again.stderr
    assert owner() == "two"
    assert plane.kubectl("get", "trainingruns", "-o", "name").split()
    assert "atoll-operator" in plane.kubectl("-n", "two", "get", "deployment", "-o", "name")
    assert plane.kubectl("-n", "one", "get", "deployment,service,serviceaccount", "-o", "name") == ""
