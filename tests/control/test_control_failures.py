"""Failures in which the API server or a controller of Kubernetes has a part.

These are eviction, graceful and forced deletion, node controller, taint eviction, StatefulSet controller and admission.
All other failures are rows of a table in the memory world (tests/support/memory_failures.py).
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from controllers import controllers

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
VICTIM = "r-two-0-1-1"
IMPENDING = "cloud.google.com/impending-node-termination"
Object = dict[str, Any]


class Rack:
    """Nodes of the test's own, and the scheduler and kubelet of one namespace, which do what they are told."""

    def __init__(self, bench) -> None:
        self.bench = bench
        self.names: list[str] = []
        bench.kubelet.idle.add(bench.namespace)

    def call(self, method: str, name: str = "", change: Object | None = None, part: str = "") -> Object:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self.bench.api.call(method, f"/api/v1/nodes{name}{part}", change, kind)

    def add(self, letter: str) -> str:
        """A node that is ready."""
        name = f"{self.bench.namespace}-{letter}"
        self.call("POST", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        self.names.append(name)
        self.ready(name, "True")
        return name

    def ready(self, name: str, status: str) -> None:
        """What the kubelet says, or the node controller for one that is silent."""
        condition = {
            "type": "Ready",
            "status": status,
            "reason": "Test",
            "message": "Kubelet stopped posting",
        }
        self.call("PATCH", f"/{name}", {"status": {"conditions": [condition]}}, "/status")

    def taint(self, name: str, key: str) -> None:
        self.call("PATCH", f"/{name}", {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})

    def delete(self, name: str) -> None:
        self.call("DELETE", f"/{name}")
        self.names.remove(name)

    def place(self, pod: str, node: str) -> None:
        """Binds a pod and runs it."""
        bench = self.bench
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        bench.api.call("POST", bench.api.path("Pod", bench.namespace, pod) + "/binding", binding)
        self.run(pod)

    def run(self, pod: str) -> None:
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        container = {
            "name": "main", "image": "runtime", "imageID": "", "restartCount": 0, "ready": True,
            "state": {"running": {"startedAt": started}},
        }  # fmt: skip
        ready = {"type": "Ready", "status": "True"}
        self.bench.kubelet.status(
            self.bench.namespace,
            pod,
            {"phase": "Running", "containerStatuses": [container], "conditions": [ready]},
        )

    def gang(self, incarnation: int, *nodes: str) -> None:
        """Places the hosts of a gang of r-two-0 in order, each when it is there: host 1 follows host 0."""
        for host, node in enumerate(nodes):
            name = f"r-two-0-{incarnation}-{host}"
            self.bench.until(name, lambda name=name: name in self.bench.pods("r-two-0"), 90)
            self.place(name, node)
        self.bench.until("all pods exist", lambda: self.bench.is_whole("r-two-0"))
        assert unit(self.bench)["placement"] == incarnation


@pytest.fixture
def rack(bench) -> Iterator[Rack]:
    """Nodes a, b and c; the gang of r-two-0 runs on a and b. A node is lost after one second."""
    made = Rack(bench)
    for letter in "abc":
        made.add(letter)
    yield made
    for name in list(made.names):
        made.delete(name)
    bench.kubelet.idle.discard(bench.namespace)


def started(rack: Rack, **recovery: Any) -> Object:
    rack.bench.operator()
    run = rack.bench.run(recovery={"nodeLostSeconds": 1, **recovery})
    rack.gang(1, *rack.names[:2])
    return run


def unit(bench, name: str = "r-two-0") -> Object:
    return bench.get("LearnerUnit", name)["status"]


def incarnation_is(bench, number: int) -> Callable[[], bool]:
    return lambda: unit(bench)["incarnation"] == number


def test_eviction_by_the_api_moves_the_unit(bench) -> None:
    bench.operator()
    bench.settled(bench.run(), ["r-two-0"])
    bench.until("it runs", lambda: bench.get("Pod", VICTIM)["status"]["phase"] == "Running")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": VICTIM}}
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, VICTIM) + "/eviction", body)
    bench.until("new pods", lambda: set(bench.pods("r-two-0")) == {"r-two-0-2-0", "r-two-0-2-1"})
    failure = unit(bench)["lastFailure"]
    assert (failure["reason"], failure["pod"]) == ("Evicted", VICTIM)
    assert "EvictionByEvictionAPI" in failure["message"]


def test_pods_that_the_api_server_refuses_are_a_condition(bench) -> None:
    bench.api.delete("ServiceAccount", bench.namespace, "default")  # without it no pod is admitted
    bench.operator()
    bench.run(units=1)
    bench.until(
        "it says why",
        lambda: bench.condition("LearnerUnit", "r-one-0", "Scheduled")[:2] == ("False", "ObjectRefused"),
    )
    assert "service account" in unit(bench, "r-one-0")["message"]


def test_a_silent_node_is_replaced_without_waiting_for_its_zombie(rack) -> None:
    bench, (_, b, c) = rack.bench, rack.names
    started(rack)
    silent = time.monotonic()
    rack.ready(b, "Unknown")
    bench.until("the next gang", lambda: "r-two-0-2-0" in bench.pods("r-two-0"))
    assert 1 <= time.monotonic() - silent < 10
    failure = unit(bench)["lastFailure"]
    assert (failure["reason"], failure["pod"], failure["node"]) == ("NodeLost", VICTIM, b)
    rack.gang(2, rack.names[0], c)
    zombie = bench.get("Pod", VICTIM)  # nobody is there to say that it has ended, and nobody forces it
    assert "deletionTimestamp" in zombie["metadata"]
    assert unit(bench)["phase"] != "Failed"


@pytest.mark.long
def test_a_stuck_pod_is_removed_by_force_where_that_is_wanted(rack) -> None:
    bench = rack.bench
    started(rack, forceDelete=True)
    rack.ready(rack.names[1], "Unknown")
    rack.gang(2, rack.names[0], rack.names[2])
    names = {pod["metadata"]["name"] for pod in bench.api.list("Pod", bench.namespace)}
    assert VICTIM in names
    bench.until(
        "the zombies are gone",
        lambda: {pod["metadata"]["labels"].get("atoll.dev/placement") for pod in learners(bench)} == {"2"},
        90,
    )
    assert unit(bench)["incarnation"] == 2


def learners(bench) -> list[Object]:
    """Also those that are terminating."""
    pods = bench.api.list("Pod", bench.namespace)
    return [pod for pod in pods if pod["metadata"]["labels"].get("atoll.dev/unit") == "r-two-0"]


def test_a_unit_leaves_a_host_before_its_maintenance_and_moves_without_cost(rack) -> None:
    bench, (a, b, c) = rack.bench, rack.names
    started(rack, maxRestarts=0)
    rack.taint(b, IMPENDING)
    bench.until(
        "it drains",
        lambda: (
            bench.condition("LearnerUnit", "r-two-0", "Draining")[:2] == ("True", "HostMaintenance")
            and not bench.pods("r-two-0")
        ),
    )
    assert unit(bench)["incarnation"] == 1  # the old gang leaves first
    for pod in learners(bench):
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 60
        bench.kubelet.fail(bench.namespace, pod["metadata"]["name"], 143)
    rack.gang(2, a, c)
    status = unit(bench)
    assert (status["phase"], status["lastFailure"]["reason"]) == ("Healing", "HostMaintenance")
    assert (status["lastFailure"]["node"], status["restarts"][0]["reason"]) == (b, "HostMaintenance")
    assert bench.condition("LearnerUnit", "r-two-0", "Draining")[0] == "False"


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEWAL_SECONDS = 10.0
"""As a kubelet does by default."""


class Heart:
    """Renews the Leases of nodes, as their kubelets would."""

    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._stop = threading.Event()
        self._alive = set(rack.names)
        self._renewed = threading.Condition()
        for name in rack.names:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
            body["spec"] = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": self._now()}
            rack.bench.api.call("POST", LEASES, body)
        self._thread = threading.Thread(target=self._work, name="heart")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        for name in self._rack.names:
            self._rack.bench.api.call("DELETE", f"{LEASES}/{name}")

    def stop(self, name: str) -> None:
        """Returns when the node dies, as its next renewal is due: the controller's patience counts from the last."""
        with self._renewed:
            for _ in range(2):
                assert self._renewed.wait(3 * RENEWAL_SECONDS)
            self._alive.discard(name)  # the controller has heard of all by now
            assert self._renewed.wait(3 * RENEWAL_SECONDS)

    def _work(self) -> None:
        while not self._stop.wait(RENEWAL_SECONDS):
            with self._renewed:
                for name in sorted(self._alive):
                    change = {"spec": {"renewTime": self._now()}}
                    kind = "application/merge-patch+json"
                    self._rack.bench.api.call("PATCH", f"{LEASES}/{name}", change, kind)
                self._renewed.notify_all()

    def _now(self) -> str:
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.fixture
def node_controller(plane, tmp_path) -> Iterator[None]:
    """The node controller, and the one that evicts from tainted nodes."""
    with controllers(plane, tmp_path, "node-lifecycle-controller", "taint-eviction-controller"):
        yield


@pytest.mark.long
def test_with_kubernetes_own_time_outs_a_lost_node_is_replaced_within_a_minute(rack, node_controller) -> None:
    bench, (a, b, c) = rack.bench, rack.names
    heart = Heart(rack)
    try:
        bench.operator()
        bench.run()
        rack.gang(1, a, b)
        heart.stop(b)
        died = time.monotonic()
        rack.gang(2, a, c)
        print(f"replaced {time.monotonic() - died:.1f} s after the node died")
        assert time.monotonic() - died < 60
        assert unit(bench)["lastFailure"]["node"] == b
        assert [pod["metadata"]["name"] for pod in learners(bench)].count(VICTIM) == 1  # the zombie
    finally:
        heart.close()


@pytest.mark.long
def test_an_operator_that_sees_no_nodes_replaces_a_lost_one_within_a_minute(
    rack, node_controller, narrow
) -> None:
    bench, (a, b, _) = rack.bench, rack.names
    heart = Heart(rack)
    try:
        bench.operator(KUBECONFIG=str(narrow))
        bench.run()
        for host, node in enumerate((a, b)):  # no leader: who sees no nodes makes all hosts at once
            bench.until("the host", lambda host=host: f"r-two-0-1-{host}" in bench.pods("r-two-0"), 90)
            rack.place(f"r-two-0-1-{host}", node)
        heart.stop(b)
        died = time.monotonic()
        bench.until("the next gang", lambda: {"r-two-0-2-0", "r-two-0-2-1"} <= set(bench.pods("r-two-0")), 90)
        print(f"replaced {time.monotonic() - died:.1f} s after the node died")
        assert time.monotonic() - died < 60
        failure = unit(bench)["lastFailure"]
        assert (failure["reason"], failure["pod"]) == ("NodeLost", VICTIM)
    finally:
        heart.close()


@pytest.fixture
def stateful_sets(plane, tmp_path) -> Iterator[None]:
    """The controller that makes the successor of a shard's pod, once that is gone."""
    with controllers(plane, tmp_path, "statefulset-controller"):
        yield


def shard(rack: Rack, **recovery: Any) -> str:
    """The uid of the syncer's pod, which runs on node c."""
    bench = rack.bench
    bench.operator()
    bench.run(recovery={"nodeLostSeconds": 1, **recovery})
    bench.until("the syncer's pod", lambda: "r-syncer-0" in bench.pods(), 90)
    rack.place("r-syncer-0", rack.names[2])
    return str(bench.get("Pod", "r-syncer-0")["metadata"]["uid"])


@pytest.mark.parametrize(
    ("lose", "force"),
    [
        pytest.param(
            lambda rack, node: rack.ready(node, "Unknown"), True, id="silent-and-by-force", marks=pytest.mark.long
        ),
        pytest.param(lambda rack, node: rack.delete(node), False, id="gone"),
        pytest.param(
            lambda rack, node: rack.taint(node, "node.kubernetes.io/out-of-service"), False, id="out-of-service"
        ),
    ],
)  # fmt: skip
def test_the_shard_of_a_lost_node_has_a_successor_within_a_minute(
    rack, stateful_sets, lose: Callable[[Rack, str], None], force: bool
) -> None:
    bench, old = rack.bench, shard(rack, forceDelete=force)
    lose(rack, rack.names[2])
    lost = time.monotonic()
    bench.until("its successor", lambda: bench.get("Pod", "r-syncer-0")["metadata"]["uid"] != old)
    print(f"another pod {time.monotonic() - lost:.1f} s after the loss")
    assert not bench.get("Pod", "r-syncer-0")["spec"].get("nodeName")
