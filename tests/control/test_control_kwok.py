"""Nodes and pods that kwok plays: a pod bound to one of its nodes runs, fails when told to, and goes when deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from atoll_local.kwok import EXIT_CODE, Kwok, tpu_node

# kwok is built from its Go module where it is not found: a minute on two cores, once.
pytestmark = [pytest.mark.control, pytest.mark.timeout(900)]
NODES = ["fake-0", "fake-1", "fake-2"]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def until(check: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return value


@pytest.fixture
def kwok(plane, api):
    with Kwok(plane) as started:
        started.add(
            tpu_node(
                name,
                pool="pool-0",
                accelerator="tpu-v6e-slice",
                topology="2x4",
                machine="ct6e-standard-4t",
                chips=4,
            )
            for name in NODES
        )
        yield started
        started.remove(NODES)


def holder(api: Any, node: str) -> str:
    """Of a node's Lease, which kwok makes a while after the node is ready; empty before."""
    leases = {item["metadata"]["name"]: item["spec"] for item in api.call("GET", LEASES)["items"]}
    return str(leases.get(node, {}).get("holderIdentity", ""))


def pod(name: str, node: str) -> dict[str, Any]:
    limits = {"google.com/tpu": "4"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}}
            ],
        },
    }


def test_pods_on_fake_nodes_run_and_fail_and_go(kwok, api) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kwok"}}
    api.call("POST", "/api/v1/namespaces", space)
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, "kwok")
    for name in NODES:
        node = api.call("GET", f"/api/v1/nodes/{name}")
        assert node["status"]["allocatable"]["google.com/tpu"] == "4"
        assert node["metadata"]["labels"]["cloud.google.com/gke-nodepool"] == "pool-0"
        until(lambda name=name: holder(api, name))
        api.create(pod(f"on-{name}", name), "kwok")

    def phase(name: str) -> str:
        return api.get("Pod", "kwok", name)["status"]["phase"]

    for name in NODES:
        until(lambda name=name: phase(f"on-{name}") == "Running")
    api.patch("Pod", "kwok", "on-fake-1", {"metadata": {"annotations": {EXIT_CODE: "137"}}})
    until(lambda: phase("on-fake-1") == "Failed")
    ended = api.get("Pod", "kwok", "on-fake-1")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")
    assert phase("on-fake-0") == phase("on-fake-2") == "Running"

    api.delete("Pod", "kwok", "on-fake-2", grace=30)
    left = until(lambda: len(pods := api.list("Pod", "kwok")) == 2 and pods)
    assert {item["metadata"]["name"] for item in left} == {"on-fake-0", "on-fake-1"}
