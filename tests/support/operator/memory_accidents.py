"""What may happen to the pods and nodes of a cluster in memory."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from memory_apiserver import Object, Server

from atoll_operator.api import group
from atoll_operator.kube.errors import NotFound
from atoll_operator.plan.conditions import format_time
from atoll_operator.plan.nodes import IMPENDING_TERMINATION
from atoll_operator.plan.pods.topology import CHIPS, generation_of
from atoll_runtime.contract import LastWords

POOLS = {"one": [("tpu-v5p-slice", "2x2x1", 1)] * 4, "two": [("tpu-v6e-slice", "2x4", 2)] * 8}
"""Node pools by pool of the run: accelerator, topology, hosts. All hosts have four chips."""


class Accidents:
    """Failures of pods and nodes, and what the kubelet reports of them."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.server = server
        self.random = chance
        self.schedule_seconds = 0.5
        """The scheduler looks at a new pod within this time."""
        self.dead: set[str] = set()
        """Nodes that are silent."""
        self.idle: set[str] = set()
        """Pods that nobody schedules, starts or ends."""
        self.due: dict[str, float] = {}
        """When an action on a pod is due, by the pod's uid and the action."""
        self._pools = POOLS
        for body in self._nodes():
            server.create(body)

    def keep_pools(self, count: int) -> None:
        """Leave only `count` node pools of two hosts in the cluster."""
        self._pools = {**POOLS, "two": POOLS["two"][:count]}
        wanted = {body["metadata"]["name"] for body in self._nodes()}
        for node in list(self.server.every("Node")):
            if node["metadata"]["name"] not in wanted:
                self.server.delete("Node", node["metadata"]["name"])

    def fail_pod(self, pod: Object, exit_code: int, message: str = "", reason: str = "Error") -> None:
        phase = "Failed" if exit_code else "Succeeded"
        self.report(pod, phase=phase, containerStatuses=[main(0, ended(exit_code, message, reason))])

    def fail_container(
        self, pod: Object, exit_code: int = 1, words: str = "AppError: broken", reason: str = "Error"
    ) -> None:
        """The container fails, and the kubelet starts it again in its pod."""
        own = self.incarnation(pod)
        if own:
            self.restart(pod, exit_code, str(LastWords(own, words)), reason)

    def disrupt(self, pod: Object, by: str, **status: Any) -> None:
        known = self.server.get("Pod", pod["metadata"]["name"])["status"].get("conditions", [])
        target = {"type": "DisruptionTarget", "status": "True", "reason": by}
        target["message"] = status.get("message", by)
        self.report(pod, conditions=[*known, target], **status)

    def lose_node(self, pod: Object, gone: bool) -> None:
        if name := self._node_of(pod):
            self.dead.add(name)
            if gone:
                self.server.delete("Node", name)
            else:
                self.ready(name, False)

    def taint_node(self, pod: Object, key: str = IMPENDING_TERMINATION) -> None:
        if name := self._node_of(pod):
            node = self._node(name)
            taint = {"key": key, "effect": "NoSchedule"}
            self.server.change({**node, "spec": {"taints": [taint]}})

    def mend_nodes(self) -> None:
        """Restore all nodes. Pods of silent nodes are gone."""
        for body in self._nodes():
            name = body["metadata"]["name"]
            try:
                node = self._node(name)
            except NotFound:
                self.server.create(body)
                continue
            self.server.change({**node, "spec": {}, "status": body["status"]})
        for pod in list(self.server.every("Pod")):
            if pod["spec"].get("nodeName") in self.dead:
                self.server.delete("Pod", pod["metadata"]["name"], 0)
        self.dead.clear()

    def incarnation(self, pod: Object) -> int:
        """The incarnation of the pod's process; 0 if it waits for another one, or if the pod belongs to no unit."""
        if group.LABEL_UNIT not in pod["metadata"]["labels"] or pod["status"]["phase"] != "Running":
            return 0
        told = int(pod["metadata"]["annotations"][group.ANNOTATION_INCARNATION])
        ended = pod["status"]["containerStatuses"][0].get("lastState", {}).get("terminated")
        if ended is None:
            return int(pod["metadata"]["name"].rsplit("-", 2)[1])
        last = LastWords.parse(ended["message"]).incarnation or 0
        return told if last < told else 0

    def restart(self, pod: Object, exit_code: int, message: str, reason: str = "Error") -> None:
        [old] = pod["status"]["containerStatuses"]
        new = main(old["restartCount"] + 1, running()) | {"lastState": ended(exit_code, message, reason)}
        self.report(pod, containerStatuses=[new])

    def report(self, pod: Object, ready: bool | None = None, **status: Any) -> None:
        body = self.server.get("Pod", pod["metadata"]["name"])
        if ready is not None:
            known = [each for each in body["status"].get("conditions", []) if each["type"] != "Ready"]
            status["conditions"] = [*known, {"type": "Ready", "status": "True" if ready else "False"}]
        body["status"] |= status
        self.server.change(body)

    def _node_of(self, pod: Object) -> str:
        name = pod["spec"].get("nodeName", "")
        return name if any(node["metadata"]["name"] == name for node in self.server.every("Node")) else ""

    def _node(self, name: str) -> Object:
        return self.server.get("Node", name)

    def ready(self, name: str, ready: bool) -> None:
        node = self._node(name)
        told = {"type": "Ready", "status": "True" if ready else "Unknown", "message": "silent"}
        self.server.change({**node, "status": {**node["status"], "conditions": [told]}})

    def _nodes(self) -> Iterator[Object]:
        for pool, kinds in self._pools.items():
            for number, (accelerator, topology, hosts) in enumerate(kinds):
                for host in range(hosts):
                    yield node(f"{pool}-{number}-{host}", f"{pool}-{number}", accelerator, topology)


def node(name: str, pool: str, accelerator: str, topology: str) -> Object:
    [machine] = [each.name for each in generation_of(accelerator).machines if each.chips == CHIPS]
    labels = {group.NODE_POOL: pool, group.ACCELERATOR: accelerator, group.TOPOLOGY: topology}
    labels[group.MACHINE_TYPE] = machine
    status = {"allocatable": {group.TPU: "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def now() -> str:
    return format_time(time.time())


def running() -> Object:
    return {"running": {"startedAt": now()}}


def ended(exit_code: int, message: str, reason: str) -> Object:
    times = {"startedAt": now(), "finishedAt": now()}
    return {"terminated": {"exitCode": exit_code, "message": message, "reason": reason, **times}}


def main(restarts: int, state: Object) -> Object:
    return {"name": "main", "restartCount": restarts, "state": state}
