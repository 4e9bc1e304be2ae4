"""Pods and nodes of one unit as Kubernetes JSON, and changes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from memory_accidents import Object, node

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.conditions import format_time
from atoll_operator.plan.nodes import IMPENDING_TERMINATION, NodeView, view_node
from atoll_operator.plan.pods.topology import slice_of

NOW = 1_700_000_000.0


class SceneCluster:
    """Two node pools, red and blue, of one slice each. Time advances only when a test moves it."""

    def __init__(self, spec: LearnerUnitSpec) -> None:
        self.now = NOW
        self.spec = spec
        self.size = slice_of(spec.accelerator, spec.topology, spec.machine_type).hosts
        self.pods: dict[str, Object] = {}
        self.nodes: dict[str, NodeView] = {}
        self.uids = 0
        for pool in ("red", "blue"):
            for host in range(self.size):
                self.put_node(f"{pool}-{host}", pool)

    def put_node(self, name: str, pool: str, **changes: Any) -> Self:
        body = node(name, pool, self.spec.accelerator, self.spec.topology, changes.pop("ready", "True"))
        body["metadata"]["labels"] |= changes.pop("labels", {})
        body["spec"] = changes.pop("spec", {})
        self.nodes[name] = view_node(body, self.nodes.get(name), self.now)
        return self

    def node_of(self, host: int) -> str:
        return str(self.pod(host)["spec"]["nodeName"])

    def change_node(self, host: int, **changes: Any) -> Self:
        name = self.node_of(host)
        self.put_node(name, self.nodes[name].pool, **changes)
        return self

    def wait(self, seconds: float) -> Self:
        self.now += seconds
        return self

    def silence(self, host: int, seconds: float = 0.0) -> Self:
        """The host's node becomes silent, and `seconds` pass."""
        self.change_node(host, ready="Unknown")
        self.now += seconds
        return self

    def announce(self, host: int) -> Self:
        self.change_node(host, spec={"taints": [{"key": IMPENDING_TERMINATION, "effect": "NoSchedule"}]})
        return self

    def delete_node(self, host: int) -> Self:
        name = self.node_of(host)
        self.nodes[name] = replace(self.nodes[name], gone=True)
        return self

    def create(self, pod: Object) -> None:
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        assert name not in self.pods, f"{name} is there already"
        self.uids += 1
        metadata = {**metadata, "uid": f"{self.uids}", "annotations": {**metadata["annotations"]}}
        self.pods[name] = {
            **pod,
            "metadata": metadata,
            "spec": {**pod["spec"]},
            "status": {"phase": "Pending"},
        }

    def remove(self, name: str, grace: int) -> None:
        """Remove the pod as its kubelet does. On a silent node it stays terminating."""
        pod = self.pods[name]
        node = self.nodes.get(pod["spec"].get("nodeName", ""))
        if grace and node is not None and not node.sound:
            pod["metadata"]["deletionTimestamp"] = self.time(grace)
        else:
            del self.pods[name]

    def pod(self, host: int) -> Object:
        ours = [pod for pod in self.pods.values() if pod["metadata"]["labels"]["atoll.dev/host"] == str(host)]
        return max(ours, key=lambda pod: int(pod["metadata"]["uid"]))

    def time(self, after: float = 0.0) -> str:
        return format_time(self.now + after)

    def running(self) -> Object:
        return {"running": {"startedAt": self.time()}}

    def condition_of(self, host: int, kind: str, status: str = "True", **more: str) -> Self:
        known = self.pod(host)["status"].setdefault("conditions", [])
        known[:] = [each for each in known if each["type"] != kind]
        known.append({"type": kind, "status": status, "lastTransitionTime": self.time(), **more})
        return self

    def bind(self, host: int, node: str) -> Self:
        self.pod(host)["spec"]["nodeName"] = node
        self.condition_of(host, "PodScheduled")
        return self

    def unschedulable(self, host: int) -> Self:
        self.condition_of(host, "PodScheduled", "False", reason="Unschedulable", message="0/4 nodes")
        return self

    def start(self, host: int) -> Self:
        self.condition_of(host, "Ready")
        main = {"name": "main", "state": self.running()}
        self.pod(host)["status"] |= {"phase": "Running", "containerStatuses": [main]}
        return self

    def fail(self, host: int, exit_code: int | None = 1, **status: Any) -> Self:
        ended = {"exitCode": exit_code, "finishedAt": self.time()}
        main = [{"name": "main", "state": {"terminated": ended}}] if exit_code is not None else []
        changed = {"phase": "Failed" if exit_code != 0 else "Succeeded", "containerStatuses": main, **status}
        self.pod(host)["status"] |= changed
        return self

    def fail_all(self, *hosts: int) -> Self:
        for host in hosts:
            self.fail(host)
        return self

    def delete(self, host: int, grace: float = 30.0, disruption: str = "") -> Self:
        """Mark the pod as deleted. It has not ended yet."""
        self.pod(host)["metadata"]["deletionTimestamp"] = self.time(grace)
        if disruption:
            self.condition_of(host, "DisruptionTarget", reason=disruption)
        return self

    def vanish(self, host: int) -> Self:
        del self.pods[self.pod(host)["metadata"]["name"]]
        return self
