"""Failures in which the API server or a controller of Kubernetes has a part.

These are eviction, admission, quota and the StatefulSet controller; test_control_placement.py has the controllers that
take pods from lost nodes. All other failures are rows of the table in tests/support/operator/memory_failures.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from control_bench import Bench
from played_kubelet import running
from refusals import UNIT as BY_HAND
from refusals import patched

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNIT, VICTIM = "r-two-0", "r-two-0-1-1"
IMPENDING = "cloud.google.com/impending-node-termination"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
Object = dict[str, Any]
Control = Callable[..., None]


class Rack:
    """Three nodes of the test, and the scheduler and kubelet of one namespace, which do what they are told."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.names = [f"{bench.namespace}-{letter}" for letter in "abc"]
        bench.kubelet.idle.add(bench.namespace)
        for name in self.names:
            bench.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, "")
            self.ready(name, "True")

    def close(self) -> None:
        for node in self.bench.list("Node"):
            if node["metadata"]["name"] in self.names:
                self.bench.delete("Node", node["metadata"]["name"])
        self.bench.kubelet.idle.discard(self.bench.namespace)

    def ready(self, name: str, status: str) -> None:
        """What the kubelet says, or the node controller for one that is silent."""
        said = {"type": "Ready", "status": status, "reason": "Test", "message": "Kubelet stopped posting"}
        self.bench.api.patch("Node", "", name, {"status": {"conditions": [said]}}, "/status")

    def taint(self, name: str, key: str) -> None:
        self.bench.patch("Node", name, {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})

    def place(self, pod: str, node: str) -> None:
        """Bind a pod and run it."""
        self.bench.kubelet.bind(self.bench.namespace, pod, node)
        self.bench.kubelet.status(self.bench.namespace, pod, running())

    def gang(self, incarnation: int, *nodes: str) -> None:
        """Place the hosts of a gang of r-two-0 in order, each when it exists: host 1 follows host 0."""
        for host, node in enumerate(nodes):
            name = f"{UNIT}-{incarnation}-{host}"
            self.bench.until(name, lambda name=name: name in self.bench.pods(UNIT), 90)
            self.place(name, node)
        self.bench.until("all pods exist", lambda: self.bench.is_whole(UNIT))

    def learners(self) -> list[Object]:
        """Also those that are terminating."""
        pods = self.bench.list("Pod")
        return [pod for pod in pods if pod["metadata"]["labels"].get("atoll.dev/unit") == UNIT]


@pytest.fixture
def rack(bench: Bench) -> Iterator[Rack]:
    made = Rack(bench)
    yield made
    made.close()


def started(rack: Rack, **recovery: Any) -> None:
    """The gang of r-two-0 runs on nodes a and b. A node is lost after one second."""
    rack.bench.operator()
    rack.bench.run(recovery={"nodeLostSeconds": 1, **recovery})
    rack.gang(1, *rack.names[:2])


def failure(bench: Bench) -> tuple[str, ...]:
    found = bench.unit(UNIT)["lastFailure"]
    return found["reason"], found["pod"], found.get("node", "")


def test_eviction_by_the_api_moves_the_unit(bench: Bench) -> None:
    bench.operator()
    bench.begin()
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": VICTIM}}
    bench.kubelet.idle.add(bench.namespace)  # a pod that is gone before the operator sees it says nothing
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, VICTIM) + "/eviction", body)
    bench.until("a failure", lambda: "lastFailure" in bench.unit(UNIT))
    bench.kubelet.idle.discard(bench.namespace)
    bench.until("new pods", lambda: set(bench.pods(UNIT)) == {"r-two-0-2-0", "r-two-0-2-1"})
    assert failure(bench)[:2] == ("Evicted", VICTIM)
    assert "EvictionByEvictionAPI" in bench.unit(UNIT)["lastFailure"]["message"]


@pytest.mark.parametrize("refuser", ["service account", "quota"])
def test_pods_that_admission_refuses_are_a_condition_until_it_accepts_them(
    bench: Bench, control: Control, refuser: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    if refuser == "quota":
        control("resourcequota-controller")
        hard = {"hard": {"requests.google.com/tpu": "3"}}
        bench.create(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": hard}
        )
        bench.until("it counts", lambda: bench.status("ResourceQuota", "small").get("hard"))
        words = "exceeded quota: small, requested: requests.google.com/tpu=4"
    else:
        bench.delete("ServiceAccount", "default")
        words = "service account"
    bench.operator()
    bench.run(units=1)
    message = bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "False", "ObjectRefused")
    assert words in message and words in bench.unit("r-one-0")["message"]
    assert bench.unit("r-one-0").get("restartCount", 0) == 0
    if refuser == "quota":
        bench.patch("ResourceQuota", "small", {"spec": {"hard": {"requests.google.com/tpu": "100"}}})
    else:
        bench.create(account)
    bench.until("it has its pod", lambda: bench.pods("r-one-0"))
    bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "True")


def test_a_volume_that_kubernetes_does_not_understand_is_a_condition_of_run_and_unit_until_it_is_corrected(
    bench: Bench,
) -> None:
    def template(field: str) -> dict[str, Any]:
        return {"podTemplate": {"volumes": [{"name": "scratch", "emptyDir": {field: "1Gi"}}]}}

    bench.operator()
    bench.run(units=1, **template("sizeLimt"))
    assert "sizeLimt" in bench.until_condition("TrainingRun", "r", "Degraded", "True", "ObjectRefused")
    bench.create(patched(BY_HAND, {"spec.run": "r", "spec.podTemplate": template("sizeLimt")["podTemplate"]}))
    message = bench.until_condition("LearnerUnit", "u", "Scheduled", "False", "ObjectRefused")
    assert "emptyDir.sizeLimt" in message
    bench.patch("TrainingRun", "r", {"spec": template("sizeLimit")})
    bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "True")


def test_a_silent_node_is_replaced_without_waiting_for_its_zombie(rack: Rack) -> None:
    bench, (a, b, c) = rack.bench, rack.names
    started(rack)
    silent = time.monotonic()
    rack.ready(b, "Unknown")
    bench.until("the next gang", lambda: "r-two-0-2-0" in bench.pods(UNIT))
    assert 1 <= time.monotonic() - silent < 10
    assert failure(bench) == ("NodeLost", VICTIM, b)
    rack.gang(2, a, c)
    zombie = bench.get("Pod", VICTIM)  # nobody reports that it has ended, and nobody forces it
    assert "deletionTimestamp" in zombie["metadata"]
    assert bench.unit(UNIT)["phase"] != "Failed"


def test_a_pod_that_vanishes_with_its_node_is_replaced_once(rack: Rack) -> None:
    bench, (a, b, c) = rack.bench, rack.names
    started(rack, nodeLostSeconds=3600)
    bench.delete("Node", b)
    bench.until("the next gang", lambda: "r-two-0-2-0" in bench.pods(UNIT))
    assert failure(bench) == ("NodeLost", VICTIM, b)
    with contextlib.suppress(Exception):
        bench.delete("Pod", VICTIM, grace=0)  # as pod garbage collection does
    rack.gang(2, a, c)
    assert {pod["metadata"]["labels"]["atoll.dev/placement"] for pod in rack.learners()} >= {"2"}
    assert (bench.unit(UNIT)["incarnation"], bench.unit(UNIT)["restartCount"]) == (2, 1)


def test_a_unit_leaves_a_host_before_its_maintenance_and_moves_without_cost(rack: Rack) -> None:
    bench, (a, b, c) = rack.bench, rack.names
    started(rack, maxRestarts=0)
    rack.taint(b, IMPENDING)
    bench.until_condition("LearnerUnit", UNIT, "Draining", "True", "HostMaintenance")
    bench.until("its pods are told to go", lambda: not bench.pods(UNIT))
    assert bench.unit(UNIT)["incarnation"] == 1  # the old gang leaves first
    for pod in rack.learners():
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 60
        bench.kubelet.fail(bench.namespace, pod["metadata"]["name"], 143)
    rack.gang(2, a, c)
    status = bench.unit(UNIT)
    assert (status["phase"], failure(bench)[0], failure(bench)[2]) == ("Healing", "HostMaintenance", b)
    assert status["restarts"][0]["reason"] == "HostMaintenance"
    bench.until_condition("LearnerUnit", UNIT, "Draining", "False")


LOSSES = [
    pytest.param(
        lambda rack, node: rack.ready(node, "Unknown"), id="silent, by force", marks=pytest.mark.long
    ),
    pytest.param(lambda rack, node: rack.bench.delete("Node", node), id="gone"),
    pytest.param(lambda rack, node: rack.taint(node, OUT_OF_SERVICE), id="out of service"),
]


@pytest.mark.parametrize("lose", LOSSES)
def test_the_shard_of_a_lost_node_has_a_successor_within_a_minute(
    rack: Rack, control: Control, lose: Callable[[Rack, str], None]
) -> None:
    bench, node = rack.bench, rack.names[2]
    control("statefulset-controller")
    bench.operator()
    bench.run(recovery={"nodeLostSeconds": 1, "forceDelete": True})
    bench.until("the syncer's pod", lambda: "r-syncer-0" in bench.pods(), 90)
    rack.place("r-syncer-0", node)
    old = bench.uids()["r-syncer-0"]
    lose(rack, node)
    lost = time.monotonic()
    bench.until("its successor", lambda: bench.get("Pod", "r-syncer-0")["metadata"]["uid"] != old)
    print(f"another pod {time.monotonic() - lost:.1f} s after the loss")
    assert not bench.get("Pod", "r-syncer-0")["spec"].get("nodeName")
