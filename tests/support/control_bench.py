"""One namespace of a real API server, and all that a test needs in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from apiserver import Api, Object, Refusal
from operator_process import Operator
from played_kubelet import Kubelet
from played_syncers import Syncers

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.topology import slice_of


class Bench:
    """One namespace, and all that a test needs in it."""

    def __init__(
        self, api: Api, namespace: str, kubelet: Kubelet, syncers: Syncers, start: Callable[..., Operator]
    ) -> None:
        self.api, self.namespace, self.kubelet, self.syncers = api, namespace, kubelet, syncers
        self._start = start

    def operator(self, **environment: str) -> Operator:
        """A further operator for this namespace."""
        return self._start(self.namespace, **environment)

    def get(self, kind: str, name: str) -> Object:
        return self.api.get(kind, self.namespace, name)

    def pods(self, unit: str = "") -> dict[str, Object]:
        """Pods of a unit, or of all, that nobody deletes, by name."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.api.list("Pod", self.namespace)
            if "deletionTimestamp" not in pod["metadata"]
            and (not unit or pod["metadata"]["labels"].get("atoll.dev/unit") == unit)
        }

    def until(self, what: str, check: Callable[[], Any], timeout: float = 60) -> Any:
        """The first true value of `check`; an assertion that shows the namespace after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(Refusal):
                if value := check():
                    return value
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}\n{self.describe()}"
            time.sleep(0.05)

    def describe(self) -> str:
        lines = []
        for kind in ("TrainingRun", "LearnerUnit", "Pod"):
            for item in self.api.list(kind, self.namespace):
                status = item.get("status", {})
                short = {key: status.get(key) for key in ("phase", "message", "incarnation", "placement")}
                conditions = {
                    c["type"]: (c["status"], c["reason"])
                    for c in status.get("conditions", [])
                    if "reason" in c
                }
                lines.append(f"{kind} {item['metadata']['name']}: {short} {conditions}")
        return "\n".join(lines)

    def condition(self, kind: str, name: str, condition: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        for item in self.get(kind, name).get("status", {}).get("conditions", []):
            if item["type"] == condition:
                return item["status"], item["reason"], item.get("message", "")
        return "", "", ""

    def run(self, name: str = "r", units: int = 2, **changes: Any) -> Object:
        """Creates a TrainingRun: one pool of single hosts, one of a two-host slice."""
        body = training_run(name, units)
        body["spec"].update(changes)
        return self.api.create(body, self.namespace)

    def report(self, run: Object, phase: str = "Running", **changes: Any) -> Object:
        """A syncer's status in which every unit learns with its incarnation of now."""
        units = {}
        for unit in self.api.list("LearnerUnit", self.namespace):
            if unit["spec"]["run"] == run["metadata"]["name"]:
                units[unit["metadata"]["name"]] = unit_report(unit.get("status", {}).get("incarnation", 1))
        return {
            "runUid": run["metadata"]["uid"], "phase": phase, "globalStep": 10, "targetSteps": 100, "tokens": 5000,
            "loss": 3.25, "tokensPerSecond": 100.0, "quorum": "3/3 (K=1)", "units": units, **changes,
        }  # fmt: skip

    def serve(self, run: Object, **changes: Any) -> Object:
        """Has a shard of the run's syncer answer; returns its status, to be changed in place."""
        name = run["metadata"]["name"]
        self.until("the syncer's certificate", lambda: self.get("Secret", f"{name}-syncer-tls"))
        status = self.report(run, **changes)
        self.syncers.serve(self.namespace, name, status)
        return status

    def settled(self, run: Object, names: list[str]) -> None:
        """All pods of these units exist."""
        self.until("all pods exist", lambda: all(map(self.is_whole, names)))

    def is_whole(self, unit: str) -> bool:
        """Whether each host of the unit has a pod of its placement."""
        body = self.get("LearnerUnit", unit)
        spec = LearnerUnitSpec.model_validate(body["spec"])
        shape = slice_of(spec.accelerator, spec.topology, spec.machine_type)
        placement = str(body.get("status", {}).get("placement", 0))
        pods = [pod["metadata"]["labels"] for pod in self.pods(unit).values()]
        hosts = {pod["atoll.dev/host"] for pod in pods if pod["atoll.dev/placement"] == placement}
        return len(hosts) == spec.slices * shape.hosts


def unit_report(incarnation: int, **changes: Any) -> Object:
    return {
        "incarnation": incarnation, "hosts": 2, "state": "Learning", "step": 40, "tokens": 900, "loss": 3.5,
        "tokensPerSecond": 50.0, "contributions": 3, "seededStep": 0, "firstMergeTime": time.time(), **changes,
    }  # fmt: skip


def training_run(name: str = "r", units: int = 2) -> Object:
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"preset": "1m"},
            "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
            "target": {"globalSteps": 100},
            "checkpoint": {"uri": "gs://bucket/run"},
            "pools": [
                {"name": "one", "accelerator": "tpu-v5p-slice", "topology": "2x2x1", "units": units},
                {
                    "name": "two", "accelerator": "tpu-v6e-slice", "topology": "2x4",
                    "machineType": "ct6e-standard-4t", "units": 1,
                },
            ],
        },
    }  # fmt: skip
