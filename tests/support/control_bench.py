"""One namespace of a real API server, with what a test needs there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from apiserver import Api, Object, Refusal
from objects import POOLS, RUN


class Bench:
    """One namespace. `kubelet`, `syncers` and `operator` are set if a test plays kubelet and syncer."""

    patience = 60.0
    """Seconds that `until` waits: a bound for a machine with other load."""

    def __init__(
        self, api: Api, namespace: str, kubelet: Any = None, syncers: Any = None, operator: Any = None
    ) -> None:
        self.api, self.namespace, self.kubelet, self.syncers = api, namespace, kubelet, syncers
        self._operator = operator

    def operator(self, **environment: str) -> Any:
        """Start another operator for this namespace."""
        return self._operator(self.namespace, **environment)

    def get(self, kind: str, name: str) -> Object:
        return self.api.get(kind, self.namespace, name)

    def list(self, kind: str) -> list[Object]:
        return self.api.list(kind, self.namespace)

    def create(self, body: Object) -> Object:
        return self.api.create(body, self.namespace)

    def patch(self, kind: str, name: str, change: Object) -> Object:
        return self.api.patch(kind, self.namespace, name, change)

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        self.api.delete(kind, self.namespace, name, grace)

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.list(kind)}

    def status(self, kind: str, name: str) -> Object:
        return dict(self.get(kind, name).get("status", {}))

    def unit(self, name: str) -> Object:
        """Status of a LearnerUnit."""
        return self.status("LearnerUnit", name)

    def change(self, name: str = "r", **spec: Any) -> None:
        """Change the spec of a TrainingRun."""
        self.patch("TrainingRun", name, {"spec": spec})

    def pods(self, unit: str = "") -> dict[str, Object]:
        """Pods of a unit or of all units by name, without those that are being deleted."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.list("Pod")
            if "deletionTimestamp" not in pod["metadata"]
            and (not unit or pod["metadata"].get("labels", {}).get("atoll.dev/unit") == unit)
        }

    def uids(self, unit: str = "") -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(unit).items()}

    def run_pods(self, unit: str = "") -> bool:
        """Whether all pods run."""
        return all(pod["status"]["phase"] == "Running" for pod in self.pods(unit).values())

    def until(self, what: str, check: Callable[[], Any]) -> Any:
        """The first true value of `check`. After `patience`, an assertion fails and shows the namespace."""
        deadline = time.monotonic() + self.patience
        while True:
            with contextlib.suppress(Refusal):
                if value := check():
                    return value
            assert time.monotonic() < deadline, f"not within {self.patience} s: {what}\n{self.describe()}"
            time.sleep(0.05)

    def describe(self) -> str:
        """Runs, units and pods with their states."""
        kinds = ("TrainingRun", "LearnerUnit", "Pod")
        found = [(kind, body) for kind in kinds for body in self.list(kind)]
        return "\n".join(f"{kind} {body['metadata']['name']}: {body.get('status')}" for kind, body in found)

    def condition(self, kind: str, name: str, condition: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        for item in self.status(kind, name).get("conditions", []):
            if item["type"] == condition:
                return item["status"], item["reason"], item.get("message", "")
        return "", "", ""

    def until_condition(self, kind: str, name: str, condition: str, *wanted: str) -> str:
        """Wait for this status, or for status and reason; return the message."""

        def holding() -> tuple[str, str, str] | None:
            found = self.condition(kind, name, condition)
            return found if found[: len(wanted)] == wanted else None

        return str(self.until(f"{kind} {name}: {condition} {wanted}", holding)[2])

    def run(self, name: str = "r", units: int = 2, **changes: Any) -> Object:
        """Create a TrainingRun: one pool of single hosts, one of a two-host slice."""
        body = training_run(name, units)
        body["spec"].update(changes)
        return self.create(body)

    def begin(self, units: int = 2, **changes: Any) -> Object:
        """Create the run `r` and wait until all pods of its units run."""
        run = self.run(units=units, **changes)
        self.settled(*(f"r-one-{index}" for index in range(units)), "r-two-0")
        self.until("all run", self.run_pods)
        return run

    def learn(self, units: int = 2, **changes: Any) -> tuple[Object, Object]:
        """Create the run `r` and wait until all its units learn; return it and its syncer's status."""
        run = self.begin(units, **changes)
        status = self.serve(run)
        summary = f"{units + 1}/{units + 1}"
        self.until("all learn", lambda: self.status("TrainingRun", "r").get("unitsSummary") == summary)
        return run, status

    def report(self, run: Object, phase: str = "Running", **changes: Any) -> Object:
        """A syncer's status in which every unit learns with its current incarnation."""
        units = {
            unit["metadata"]["name"]: {
                "incarnation": unit.get("status", {}).get("incarnation", 1), "hosts": 2, "state": "Learning",
                "step": 40, "tokens": 900, "loss": 3.5, "tokensPerSecond": 50.0, "contributions": 3, "seededStep": 0,
                "firstMergeTime": time.time(),
            }
            for unit in self.list("LearnerUnit")
            if unit["spec"]["run"] == run["metadata"]["name"]
        }  # fmt: skip
        return {
            "runUid": run["metadata"]["uid"], "phase": phase, "globalStep": 10, "targetSteps": 100, "tokens": 5000,
            "loss": 3.25, "tokensPerSecond": 100.0, "quorum": "3/3 (K=1)", "units": units, **changes,
        }  # fmt: skip

    def serve(self, run: Object, **changes: Any) -> Object:
        """Have a shard of the run's syncer answer. Return its status, which the test may change in place."""
        name = run["metadata"]["name"]
        self.until("the syncer's certificate", lambda: self.get("Secret", f"{name}-syncer-tls"))
        status = self.report(run, **changes)
        self.syncers.serve(self.namespace, name, status)
        return status

    def settled(self, *names: str) -> None:
        """Wait until all pods of these units exist."""
        self.until("all pods exist", lambda: all(map(self.is_whole, names)))

    def is_whole(self, unit: str) -> bool:
        """Whether each host of the unit has a pod of its placement."""
        placement = str(self.unit(unit).get("placement", 0))
        pods = [pod["metadata"]["labels"] for pod in self.pods(unit).values()]
        hosts = {pod["atoll.dev/host"] for pod in pods if pod["atoll.dev/placement"] == placement}
        return len(hosts) == (2 if "-two-" in unit else 1)


def training_run(name: str = "r", units: int = 2) -> Object:
    one, two = POOLS
    pools = [{**one, "units": units}, {**two, "units": 1}]
    return {**RUN, "metadata": {"name": name}, "spec": {**RUN["spec"], "pools": pools}}
