"""Every way in which a unit fails, on a real API server: its reason in the status, and what is done about it.

Pods and nodes are given the states that kubelet, scheduler and node controller give them, through the same
subresources; the eviction is the API's own.
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
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
VICTIM = "r-two-0-1-1"
IMPENDING = "cloud.google.com/impending-node-termination"
Object = dict[str, Any]


@pytest.fixture
def placed(bench):
    """A run whose pods all run, under one operator."""
    bench.operator()
    run = bench.run()
    bench.settled(run, UNITS)
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    return bench


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


def disrupted(by: str, **status: Any) -> Callable[[Any, str], None]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": by}
    return lambda b, pod: b.kubelet.status(b.namespace, pod, {"conditions": [condition], **status})


def failed(**status: Any) -> Callable[[Any, str], None]:
    return lambda b, pod: b.kubelet.status(b.namespace, pod, {"phase": "Failed", **status})


def evicted(bench, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, pod) + "/eviction", body)


@pytest.mark.parametrize(
    ("lose", "reason", "exit_code", "words"),
    [
        pytest.param(
            lambda b, pod: b.kubelet.fail(b.namespace, pod, 7), "AppError", 7, "exit status 7", id="exit-status"
        ),
        pytest.param(
            lambda b, pod: b.kubelet.fail(b.namespace, pod, 1, "ValueError: no such shard"),
            "ValueError", 1, "no such shard", id="termination-message",
        ),
        pytest.param(lambda b, pod: b.kubelet.fail(b.namespace, pod, 137), "AppError", 137, "SIGKILL", id="signal"),
        pytest.param(
            lambda b, pod: b.kubelet.fail(b.namespace, pod, 137, reason="OOMKilled"),
            "OutOfMemory", 137, "memory", id="out-of-memory",
        ),
        pytest.param(
            lambda b, pod: b.kubelet.fail(b.namespace, pod, 64, "LossNotFinite: loss nan at inner step 7"),
            "LossNotFinite", 64, "inner step 7", id="loss-not-finite",
        ),
        pytest.param(evicted, "Evicted", None, "EvictionByEvictionAPI", id="evicted-by-the-api"),
        pytest.param(
            disrupted("TerminationByKubelet", phase="Failed", reason="Evicted", message="low on memory"),
            "Evicted", None, "low on memory", id="evicted-by-the-kubelet",
        ),
        pytest.param(
            disrupted("PreemptionByScheduler", phase="Failed", message="preempted by p/q"),
            "Preempted", None, "preempted by p/q", id="preempted",
        ),
        pytest.param(
            failed(reason="UnexpectedAdmissionError", message="no healthy devices present"),
            "AdmissionRejected", None, "no healthy devices", id="rejected-by-the-kubelet",
        ),
        pytest.param(
            disrupted("TerminationByKubelet", phase="Failed", reason="Terminated", message="node shutdown"),
            "HostMaintenance", None, "node shutdown", id="node-shut-down",
        ),
        pytest.param(
            disrupted("DeletionByTaintManager", phase="Failed"), "NodeLost", None, "TaintManager", id="node-tainted"
        ),
    ],
)  # fmt: skip
def test_a_failure_is_told_by_its_reason_and_heals(placed, lose, reason, exit_code, words) -> None:
    lose(placed, VICTIM)
    placed.until("the next incarnation", incarnation_is(placed, 2))
    failure = unit(placed)["lastFailure"]
    assert (failure["reason"], failure["pod"], failure.get("exitCode")) == (reason, VICTIM, exit_code)
    assert words in failure["message"]
    gang = 1 if reason in ("AppError", "ValueError", "OutOfMemory") else 2
    wanted = {f"r-two-0-{gang}-0", "r-two-0-2-1"}
    placed.until("its pods", lambda: set(placed.pods("r-two-0")) == wanted)
    assert unit(placed)["placement"] == gang
    assert placed.condition("LearnerUnit", "r-two-0", "Healing")[:2] == ("True", reason)


def test_a_spot_host_that_is_taken_away_is_told_as_preempted_and_charges_no_budget(bench) -> None:
    operator = bench.operator()
    spec = bench.run()["spec"]
    pools = [{**pool, "capacity": "Spot"} if pool["name"] == "two" else pool for pool in spec["pools"]]
    bench.api.delete("TrainingRun", bench.namespace, "r")
    bench.settled(bench.run("s", pools=pools, recovery={"maxRestarts": 0}), ["s-two-0"])
    bench.until("it runs", lambda: bench.get("Pod", "s-two-0-1-1")["status"]["phase"] == "Running")
    lose = disrupted("TerminationByKubelet", phase="Failed", reason="Terminated", message="node shutdown")
    lose(bench, "s-two-0-1-1")
    bench.until("the next gang", lambda: set(bench.pods("s-two-0")) == {"s-two-0-2-0", "s-two-0-2-1"})
    failure = unit(bench, "s-two-0")["lastFailure"]
    assert (failure["reason"], failure["message"]) == ("Preempted", "node shutdown")
    told = 'atoll_unit_restarts_total{reason="Preempted"}'
    bench.until("a metric", lambda: operator.figures().get(told) == 1)


def test_an_image_that_cannot_be_pulled_is_a_wait_with_a_reason_and_no_restart(rack) -> None:
    bench = rack.bench
    bench.operator()
    bench.run()
    bench.until("the leader", lambda: "r-two-0-1-0" in bench.pods("r-two-0"))
    waiting = {"reason": "ImagePullBackOff", "message": "manifest unknown"}
    container = {"name": "main", "image": "x", "imageID": "", "restartCount": 0, "ready": False}
    bench.kubelet.status(
        bench.namespace, "r-two-0-1-0", {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
    )
    reason = bench.until(
        "it says why",
        lambda: (c := bench.condition("LearnerUnit", "r-two-0", "PodsReady"))[1] == "ImagePull" and c,
    )
    assert "manifest unknown" in reason[2]
    assert (unit(bench)["incarnation"], unit(bench).get("restartCount", 0)) == (1, 0)


def test_a_unit_that_finds_no_capacity_again_waits_and_the_others_train_on(placed) -> None:
    run = placed.get("TrainingRun", "r")
    status = placed.serve(run)
    placed.until("running", lambda: placed.condition("TrainingRun", "r", "Ready")[0] == "True")
    before = {name: pod["metadata"]["uid"] for name, pod in placed.pods("r-one-0").items()}
    placed.kubelet.idle.add(placed.namespace)
    try:
        placed.kubelet.fail(placed.namespace, VICTIM, 64)
        del status["units"]["r-two-0"]
        placed.until("the next gang", lambda: "r-two-0-2-0" in placed.pods("r-two-0"))
        message = "0/5 nodes are available: 5 Insufficient google.com/tpu."
        pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        placed.kubelet.status(placed.namespace, "r-two-0-2-0", {"conditions": [pending]})
        placed.until(
            "the unit says so",
            lambda: placed.condition("LearnerUnit", "r-two-0", "Scheduled")[1] == "CapacityUnavailable",
        )
        degraded = placed.until(
            "the run says so",
            lambda: (
                (c := placed.condition("TrainingRun", "r", "Degraded"))[0] == "True" and message in c[2] and c
            ),
        )
        assert "r-two-0" in degraded[2]
        assert placed.condition("TrainingRun", "r", "Ready")[0] == "True"
        assert {name: pod["metadata"]["uid"] for name, pod in placed.pods("r-one-0").items()} == before
        assert (unit(placed)["incarnation"], unit(placed)["restartCount"]) == (2, 1)
    finally:
        placed.kubelet.idle.discard(placed.namespace)


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


def test_a_node_that_is_gone_takes_its_gang_along_at_once(rack) -> None:
    started(rack, nodeLostSeconds=3600)
    rack.delete(rack.names[1])
    rack.bench.until("the next incarnation", incarnation_is(rack.bench, 2))
    assert unit(rack.bench)["lastFailure"]["reason"] == "NodeLost"


def test_a_node_out_of_service_takes_its_gang_along_at_once(rack) -> None:
    started(rack, nodeLostSeconds=3600)
    rack.taint(rack.names[0], "node.kubernetes.io/out-of-service")
    rack.bench.until("the next incarnation", incarnation_is(rack.bench, 2))
    assert unit(rack.bench)["lastFailure"]["node"] == rack.names[0]


def test_a_node_that_flaps_makes_no_heal(rack) -> None:
    bench, node = rack.bench, rack.names[1]
    started(rack, nodeLostSeconds=6)
    for _ in range(3):
        rack.ready(node, "False")
        rack.ready(node, "True")
    late = time.monotonic() + 7
    bench.until("its time is over", lambda: time.monotonic() > late)
    assert unit(bench)["incarnation"] == 1
    rack.ready(node, "False")  # the operator did see the node: longer than that is a loss
    bench.until("the next incarnation", incarnation_is(bench, 2))


def test_an_operator_that_starts_late_sees_the_lost_node(rack) -> None:
    bench = rack.bench
    first = bench.operator()
    bench.run(recovery={"nodeLostSeconds": 1})
    rack.gang(1, *rack.names[:2])
    first.kill()
    rack.ready(rack.names[0], "Unknown")
    first.start()
    bench.until("the next incarnation", incarnation_is(bench, 2))
    assert unit(bench)["lastFailure"]["reason"] == "NodeLost"


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


def test_units_of_which_nothing_moves_hear_of_a_shorter_time_out_at_once(placed) -> None:
    placed.serve(placed.get("TrainingRun", "r"))
    placed.until("learning", lambda: placed.condition("LearnerUnit", "r-two-0", "Learning")[0] == "True")
    still = time.monotonic() + 6
    placed.until("all is said that there is to say", lambda: time.monotonic() > still)
    placed.api.patch("TrainingRun", placed.namespace, "r", {"spec": {"recovery": {"hangSeconds": 2}}})
    placed.until("the next incarnation", lambda: unit(placed)["incarnation"] == 2)
    assert unit(placed)["lastFailure"]["reason"] == "Hang"


def test_a_unit_that_makes_no_step_hangs_and_a_silent_syncer_is_no_hang(placed) -> None:
    status = placed.serve(placed.get("TrainingRun", "r"))
    placed.until("learning", lambda: placed.condition("LearnerUnit", "r-two-0", "Learning")[0] == "True")
    path = f"{placed.namespace}/r/0"
    del placed.syncers.statuses[path]
    placed.until(
        "it is silent", lambda: placed.condition("TrainingRun", "r", "Ready")[1] == "SyncerUnavailable"
    )
    placed.api.patch("TrainingRun", placed.namespace, "r", {"spec": {"recovery": {"hangSeconds": 4}}})
    silent = time.monotonic() + 6
    placed.until("the syncer was silent for longer than the time-out", lambda: time.monotonic() > silent)
    assert unit(placed)["incarnation"] == 1
    placed.syncers.statuses[path] = status
    began, step = time.monotonic(), 40

    def only_one_hangs() -> bool:
        nonlocal step
        step += 1
        for name in ("r-one-0", "r-one-1"):
            status["units"][name]["step"] = step
        return unit(placed)["incarnation"] == 2

    placed.until("the next incarnation", only_one_hangs)
    assert time.monotonic() - began > 3
    failure = unit(placed)["lastFailure"]
    assert failure["reason"] == "Hang"
    assert "inner step 40" in failure["message"]
    assert [unit(placed, name)["incarnation"] for name in ("r-one-0", "r-one-1")] == [1, 1]


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


def test_a_unit_in_its_back_off_leaves_a_host_at_once_and_comes_back_when_that_is_over(rack) -> None:
    bench, names = rack.bench, rack.names
    started(rack, inPlace=False)
    bench.kubelet.fail(bench.namespace, learners(bench)[0]["metadata"]["name"], 1)
    rack.gang(2, *names[:2])
    rack.taint(names[0], IMPENDING)
    bench.until("it drains", lambda: not bench.pods("r-two-0"))
    failed = datetime.datetime.fromisoformat(unit(bench)["restarts"][0]["time"])
    assert bench.condition("LearnerUnit", "r-two-0", "Draining")[0] == "True"
    for pod in learners(bench):
        bench.kubelet.fail(bench.namespace, pod["metadata"]["name"], 143)
    rack.gang(3, *names[1:])
    status = unit(bench)
    moved = datetime.datetime.fromisoformat(status["restarts"][1]["time"])
    assert (moved - failed).total_seconds() >= 4  # 5 s, more or less a fifth
    assert (status["incarnation"], status["restarts"][1]["reason"]) == (3, "HostMaintenance")


def test_an_operator_killed_while_a_unit_drains_moves_it_once(rack) -> None:
    bench = rack.bench
    operator = bench.operator()
    bench.run()
    rack.gang(1, *rack.names[:2])
    rack.taint(rack.names[0], IMPENDING)
    bench.until("it drains", lambda: not bench.pods("r-two-0"))
    operator.kill()
    for pod in learners(bench):
        bench.api.delete("Pod", bench.namespace, pod["metadata"]["name"], grace=0)
    operator.start()
    rack.gang(2, *rack.names[1:])
    assert (unit(bench)["incarnation"], unit(bench)["restartCount"]) == (2, 1)


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
        pytest.param(lambda rack, node: rack.ready(node, "Unknown"), True, id="silent-and-by-force"),
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


def test_the_shard_of_a_silent_node_is_left_to_kubernetes_unless_force_is_wanted(rack, stateful_sets) -> None:
    bench, old = rack.bench, shard(rack)
    rack.gang(1, *rack.names[:2])
    for node in rack.names:
        rack.ready(node, "Unknown")
    bench.until("the unit's loss was seen", incarnation_is(bench, 2))
    late = time.monotonic() + 3
    bench.until("its time is over", lambda: time.monotonic() > late)
    metadata = bench.get("Pod", "r-syncer-0")["metadata"]
    assert (metadata["uid"], "deletionTimestamp" in metadata) == (old, False)
