"""Units in a queue: the real Kueue with quota for one slice, real controllers and scheduler, nodes that kwok plays."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from control_bench import training_run

from atoll_local.controlplane import ControlPlane
from atoll_local.kueue import Kueue
from atoll_local.kwok import EXIT_CODE, Kwok, tpu_node

# Kueue is built from its Go module where it is not found: minutes on two cores, once.
pytestmark = [pytest.mark.control, pytest.mark.timeout(900)]
WAIT = 180
"""Seconds; the controller manager looks for pods that were deleted before they had a node every 20 s."""
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
TPU = "google.com/tpu"
CHIPS = 8
"""Of one slice: two hosts of four."""
NUMBERS = itertools.count(1)
SHAPE = {"accelerator": "tpu-v6e-slice", "topology": "2x4", "machineType": "ct6e-standard-4t"}


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, installed: Callable[[ControlPlane], None]
) -> Iterator[tuple[Kwok, ControlPlane]]:
    """A cluster with three slices of nodes; who gets which is the real scheduler's business."""
    with ControlPlane(tmp_path_factory.mktemp("queues"), controllers=True) as plane:
        installed(plane)
        with Kwok(plane) as kwok:
            kwok.add(
                tpu_node(
                    f"{pool}-{host}",
                    pool=pool,
                    accelerator=SHAPE["accelerator"],
                    topology=SHAPE["topology"],
                    machine=SHAPE["machineType"],
                    chips=4,
                )
                for pool in ("red", "green", "blue")
                for host in range(2)
            )
            yield kwok, plane


@pytest.fixture(scope="module")
def queues(nodes: tuple[Kwok, ControlPlane]) -> ControlPlane:
    return nodes[1]


@pytest.fixture(scope="module")
def kueue(queues: ControlPlane) -> Iterator[Kueue]:
    with Kueue(queues) as started:
        yield started


class Town:
    """One namespace with a queue of its own, and an operator with the rights of the chart's service account."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    def queue(self, chips: int, **policy: str) -> None:
        """A LocalQueue `team` with its own ClusterQueue."""
        quota = [{"name": "v6e", "resources": [{"name": TPU, "nominalQuota": chips}]}]
        self._kueue("resourceflavors", "ResourceFlavor", "v6e", {}, found=True)
        self._kueue(
            "clusterqueues",
            "ClusterQueue",
            self.namespace,
            {
                "namespaceSelector": {},
                "preemption": policy,
                "resourceGroups": [{"coveredResources": [TPU], "flavors": quota}],
            },
        )
        self._kueue(
            f"namespaces/{self.namespace}/localqueues", "LocalQueue", "team", {"clusterQueue": self.namespace}
        )

    def priority(self, name: str, value: int) -> None:
        body = {"metadata": {"name": name}, "value": value}
        self.api.call("POST", f"{KUEUE}/workloadpriorityclasses", body | _kind("WorkloadPriorityClass"))

    def _kueue(self, path: str, kind: str, name: str, spec: dict[str, Any], found: bool = False) -> None:
        try:
            body = {"metadata": {"name": name}, "spec": spec}
            self.api.call("POST", f"{KUEUE}/{path}", body | _kind(kind))
        except Exception as error:
            if not (found and getattr(error, "status", 0) == 409):
                raise

    def used(self) -> int:
        """Chips of quota that Kueue says are taken."""
        status = self.api.call("GET", f"{KUEUE}/clusterqueues/{self.namespace}").get("status", {})
        return sum(
            int(resource["total"])
            for flavor in status.get("flavorsReservation", [])
            for resource in flavor["resources"]
        )

    def workloads(self) -> set[str]:
        """Their names, without the part that is the unit's own."""
        items = self.api.call("GET", f"{KUEUE}/namespaces/{self.namespace}/workloads")["items"]
        return {item["metadata"]["name"].rpartition("-")[0] for item in items}

    def run(self, name: str, **changes: Any) -> None:
        body = training_run(name)
        own = {"checkpoint": {"uri": f"gs://bucket/{name}"}, "pools": [{"name": "p", "units": 1, **SHAPE}]}
        body["spec"].update({**own, "queueName": "team", **changes})
        self.api.create(body, self.namespace)

    def change(self, name: str, **spec: Any) -> None:
        self.api.patch("TrainingRun", self.namespace, name, {"spec": spec})

    def unit(self, name: str) -> dict[str, Any]:
        return dict(self.api.get("LearnerUnit", self.namespace, f"{name}-p-0"))

    def scheduled(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of a unit's condition."""
        for item in self.unit(name).get("status", {}).get("conditions", []):
            if item["type"] == "Scheduled":
                return item["status"], item["reason"], item.get("message", "")
        return "", "", ""

    def pods(self, name: str) -> dict[str, dict[str, Any]]:
        """Of a run's unit, by name; also those on their way out."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.api.list("Pod", self.namespace)
            if pod["metadata"]["labels"].get("atoll.dev/unit") == f"{name}-p-0"
        }

    def runs(self, name: str) -> bool:
        """Its one gang, and nothing else of it, runs."""
        pods = self.pods(name).values()
        gangs = {pod["metadata"]["labels"]["atoll.dev/placement"] for pod in pods}
        return len(pods) == 2 and len(gangs) == 1 and all(pod["status"]["phase"] == "Running" for pod in pods)

    def queued(self, name: str) -> bool:
        """It waits whole, and says for what."""
        pods = self.pods(name).values()
        return self.scheduled(name)[:2] == ("False", "Queued") and [
            pod["spec"].get("nodeName", "") for pod in pods if "deletionTimestamp" not in pod["metadata"]
        ] == ["", ""]

    def until(self, what: str, check: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT
        while True:
            try:
                if check():
                    return
            except Exception as error:
                if getattr(error, "status", 0) != 404:
                    raise
            assert time.monotonic() < deadline, f"not within {WAIT} s: {what}\n{self.describe()}"
            time.sleep(0.1)

    def describe(self) -> str:
        lines = [f"chips used {self.used()}, workloads {sorted(self.workloads())}"]
        for unit in self.api.list("LearnerUnit", self.namespace):
            status = unit.get("status", {})
            lines.append(f"{unit['metadata']['name']}: {status.get('phase')} {status.get('message')}")
        for pod in self.api.list("Pod", self.namespace):
            metadata = pod["metadata"]
            lines.append(
                f"{metadata['name']}: {pod['status']['phase']} on {pod['spec'].get('nodeName')} gates "
                f"{pod['spec'].get('schedulingGates')} deleted {metadata.get('deletionTimestamp')} "
                f"finalizers {metadata.get('finalizers')}"
            )
        return "\n".join(lines)


def _kind(kind: str) -> dict[str, str]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind}


@pytest.fixture
def town(queues: ControlPlane, api: Any, employ: Any) -> Iterator[Town]:
    mine = type(api)(queues)
    namespace = f"town-{next(NUMBERS)}"
    mine.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    with employ(queues, namespace):
        yield Town(mine, namespace)


@pytest.mark.long
def test_a_unit_that_was_there_before_kueue_waits_for_it(town: Town, request: pytest.FixtureRequest) -> None:
    town.run("a")
    town.until("a waits", lambda: town.queued("a"))
    request.getfixturevalue("kueue")
    town.queue(CHIPS)
    town.until("a runs", lambda: town.runs("a") and town.used() == CHIPS)
    town.change("a", suspend=True)
    town.until("all is given back", lambda: town.used() == 0 and not town.pods("a"))


@pytest.mark.usefixtures("kueue")
def test_quota_for_one_unit_goes_from_unit_to_unit_and_none_of_it_is_lost(town: Town) -> None:
    town.queue(CHIPS)
    town.run("a")
    town.until("a runs", lambda: town.runs("a") and town.used() == CHIPS)
    assert town.workloads() == {"a-p-0-1"}

    town.api.patch("Pod", town.namespace, "a-p-0-1-1", {"metadata": {"annotations": {EXIT_CODE: "1"}}})
    town.until(
        "its next gang runs", lambda: town.runs("a") and set(town.pods("a")) == {"a-p-0-2-0", "a-p-0-2-1"}
    )
    town.until(
        "the quota of the old gang is back", lambda: town.workloads() == {"a-p-0-2"} and town.used() == CHIPS
    )

    town.run("b")
    town.until("b waits", lambda: town.queued("b"))
    assert "admission by queue team; `kubectl describe workload b-p-0-1-" in town.scheduled("b")[2]
    assert town.unit("b")["status"]["restartCount"] == 0
    assert town.runs("a")

    town.change("a", suspend=True)
    town.until("b runs", lambda: town.runs("b") and not town.pods("a"))
    town.change("a", suspend=False)
    town.until("a waits", lambda: town.queued("a"))
    town.change("b", units=0)
    town.until("a runs", lambda: town.runs("a") and town.used() == CHIPS)

    town.change("b", units=1)
    town.until("b waits again", lambda: town.queued("b"))
    town.change("b", units=0)
    town.change("a", units=0)
    town.until(
        "all is given back",
        lambda: town.used() == 0 and not town.workloads() and not town.pods("a") and not town.pods("b"),
    )


@pytest.mark.usefixtures("kueue")
def test_a_unit_that_the_queue_stops_for_another_waits_again_and_says_why(town: Town) -> None:
    town.queue(CHIPS, withinClusterQueue="LowerPriority")
    town.priority("important", 1000)
    town.run("a")
    town.until("a runs", lambda: town.runs("a"))
    town.run("b", queuePriorityClass="important")
    town.until("b runs and a waits", lambda: town.runs("b") and town.queued("a"))
    status = town.unit("a")["status"]
    assert status["lastFailure"]["reason"] == "Preempted"
    assert "Preempted to accommodate a workload" in status["lastFailure"]["message"]
    town.until("the quota is b's", lambda: town.used() == CHIPS)  # Kueue writes its status a while later
    town.api.delete("TrainingRun", town.namespace, "b")
    town.until("a runs again", lambda: town.runs("a") and town.used() == CHIPS)
    town.api.delete("TrainingRun", town.namespace, "a")
    town.until("nothing is left", lambda: town.used() == 0 and not town.api.list("Pod", town.namespace))


@pytest.mark.long
@pytest.mark.usefixtures("kueue")
def test_another_queue_is_a_rolling_change_and_no_queue_is_none(town: Town) -> None:
    town.run("a", queueName="nobody")
    town.until("a waits for a queue that is not there", lambda: town.queued("a"))
    town.change("a", queueName=None)
    town.until("a runs without one", lambda: town.runs("a"))
    [one, two] = town.pods("a").values()
    for pod in (one, two):
        assert not any(
            "kueue" in key for key in (*pod["metadata"]["labels"], *pod["metadata"]["annotations"])
        )
        assert not pod["metadata"].get("finalizers")


@pytest.mark.long
@pytest.mark.usefixtures("kueue")
def test_by_force_the_quota_of_a_unit_on_lost_nodes_comes_back(
    town: Town, nodes: tuple[Kwok, ControlPlane]
) -> None:
    town.queue(CHIPS)
    town.run("a", recovery={"forceDelete": True})
    town.until("a runs", lambda: town.runs("a") and town.used() == CHIPS)
    kwok, _ = nodes
    kwok.stop()
    try:
        town.until("its next gang waits for the quota of the old one", lambda: town.queued("a"))
        assert town.unit("a")["status"]["lastFailure"]["reason"] == "NodeLost"
        assert town.used() == CHIPS
        town.until(
            "it has it", lambda: set(town.pods("a")) == {"a-p-0-2-0", "a-p-0-2-1"} and not town.queued("a")
        )
        town.until("and nobody else", lambda: town.workloads() == {"a-p-0-2"} and town.used() == CHIPS)
    finally:
        kwok.start()
    town.until("with its nodes it runs", lambda: town.runs("a"))
