"""Units in a queue: the real Kueue with quota for one slice, real controllers and scheduler, nodes that kwok plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from apiserver import Refusal
from control_bench import Bench, training_run
from kueue import Kueue

from atoll_local.controlplane import ControlPlane
from atoll_local.kwok import EXIT_CODE, Kwok, tpu_node

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
TPU = "google.com/tpu"
CHIPS = 8
"""Of one slice: two hosts of four."""
SHAPE = {"accelerator": "tpu-v6e-slice", "topology": "2x4", "machineType": "ct6e-standard-4t"}


@pytest.fixture(scope="module")
def crowded(controlled: tuple[ControlPlane, Kwok]) -> Iterator[ControlPlane]:
    """A cluster with Kueue and three slices of nodes; the real scheduler decides who gets which."""
    kind = {"machine": SHAPE["machineType"], **{key: SHAPE[key] for key in ("accelerator", "topology")}}
    names = [(pool, f"{pool}-{host}") for pool in ("red", "green", "blue") for host in range(2)]
    controlled[1].add(tpu_node(name, pool=pool, chips=4, **kind) for pool, name in names)
    with Kueue(controlled[0]):
        yield controlled[0]


class Town(Bench):
    """One namespace with a queue of its own, and an operator."""

    patience = 180.0
    """The controller manager looks for pods that were deleted before they had a node every 20 s."""

    def post(self, path: str, kind: str, name: str, content: dict[str, Any]) -> None:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **content}
        try:
            self.api.call("POST", f"{KUEUE}/{path}", body)
        except Refusal as refusal:
            if refusal.status != 409:
                raise

    def queue(self, chips: int, **policy: str) -> None:
        """A LocalQueue `team` with its own ClusterQueue."""
        quota = [{"name": "v6e", "resources": [{"name": TPU, "nominalQuota": chips}]}]
        groups = [{"coveredResources": [TPU], "flavors": quota}]
        spec = {"namespaceSelector": {}, "preemption": policy, "resourceGroups": groups}
        self.post("resourceflavors", "ResourceFlavor", "v6e", {"spec": {}})
        self.post("clusterqueues", "ClusterQueue", self.namespace, {"spec": spec})
        local = {"spec": {"clusterQueue": self.namespace}}
        self.post(f"namespaces/{self.namespace}/localqueues", "LocalQueue", "team", local)

    def used(self) -> int:
        status = self.api.call("GET", f"{KUEUE}/clusterqueues/{self.namespace}").get("status", {})
        flavors = status.get("flavorsReservation", [])
        return sum(int(resource["total"]) for flavor in flavors for resource in flavor["resources"])

    def workloads(self) -> set[str]:
        """Their names, without the part that is the unit's own."""
        items = self.api.call("GET", f"{KUEUE}/namespaces/{self.namespace}/workloads")["items"]
        return {item["metadata"]["name"].rpartition("-")[0] for item in items}

    def apply(self, name: str, **changes: Any) -> None:
        body = training_run(name)
        own = {"checkpoint": {"uri": f"gs://bucket/{name}"}, "pools": [{"name": "p", "units": 1, **SHAPE}]}
        body["spec"].update({**own, "queueName": "team", **changes})
        self.create(body)

    def gang(self, name: str) -> list[dict[str, Any]]:
        """Pods of a run's unit; also those that are being deleted."""
        pods = self.list("Pod")
        return [pod for pod in pods if pod["metadata"]["labels"].get("atoll.dev/unit") == f"{name}-p-0"]

    def until_runs(self, name: str) -> None:
        """Its one gang, and nothing else of it, runs."""

        def runs() -> bool:
            pods = self.gang(name)
            gangs = {pod["metadata"]["labels"]["atoll.dev/placement"] for pod in pods}
            whole = len(pods) == 2 and len(gangs) == 1
            return whole and all(pod["status"]["phase"] == "Running" for pod in pods) and self.used() == CHIPS

        self.until(f"{name} runs", runs)

    def until_queued(self, name: str) -> None:
        """It waits whole, and says for what."""

        def queued() -> bool:
            waits = self.condition("LearnerUnit", f"{name}-p-0", "Scheduled")[:2] == ("False", "Queued")
            nodes = [pod["spec"].get("nodeName", "") for pod in self.pods(f"{name}-p-0").values()]
            return waits and nodes == ["", ""]

        self.until(f"{name} waits", queued)

    def until_nothing_is_left(self) -> None:
        left = lambda: self.used() or self.workloads() or self.gang("a") or self.gang("b")  # noqa: E731
        self.until("all is given back", lambda: not left())


@pytest.fixture
def town(crowded: ControlPlane, settle: Callable[..., AbstractContextManager[Town]]) -> Iterator[Town]:
    with settle(crowded, Town) as one:
        yield one


def test_quota_for_one_unit_goes_from_unit_to_unit_and_none_of_it_is_lost(town: Town) -> None:
    town.queue(CHIPS)
    town.apply("a")
    town.until_runs("a")
    assert town.workloads() == {"a-p-0-1"}

    town.patch("Pod", "a-p-0-1-1", {"metadata": {"annotations": {EXIT_CODE: "1"}}})
    town.until("the next gang", lambda: set(town.pods("a-p-0")) == {"a-p-0-2-0", "a-p-0-2-1"})
    town.until("the quota of the old gang is back", lambda: town.workloads() == {"a-p-0-2"})
    town.until_runs("a")

    town.apply("b")
    town.until_queued("b")
    message = town.condition("LearnerUnit", "b-p-0", "Scheduled")[2]
    assert "admission by queue team; `kubectl describe workload b-p-0-1-" in message
    assert town.unit("b-p-0")["restartCount"] == 0
    town.until_runs("a")

    town.change("a", suspend=True)
    town.until_runs("b")
    town.until("a has given all back", lambda: not town.gang("a"))
    town.change("a", suspend=False)
    town.until_queued("a")
    town.change("b", units=0)
    town.until_runs("a")
    town.change("b", units=1)
    town.until_queued("b")
    for name in ("b", "a"):
        town.change(name, units=0)
    town.until_nothing_is_left()


def test_a_unit_that_the_queue_stops_for_another_waits_again_and_says_why(town: Town) -> None:
    town.queue(CHIPS, withinClusterQueue="LowerPriority")
    town.post("workloadpriorityclasses", "WorkloadPriorityClass", "important", {"value": 1000})
    town.apply("a")
    town.until_runs("a")
    town.apply("b", queuePriorityClass="important")
    town.until_runs("b")
    town.until_queued("a")
    failure = town.unit("a-p-0")["lastFailure"]
    assert failure["reason"] == "Preempted"
    assert "Preempted to accommodate a workload" in failure["message"]
    town.delete("TrainingRun", "b")
    town.until_runs("a")
    town.delete("TrainingRun", "a")
    town.until("nothing is left", lambda: town.used() == 0 and not town.names("Pod"))
