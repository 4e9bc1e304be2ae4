"""Scheduler, kubelets, Kueue and the controllers of a cluster in memory, and what may happen to its pods and nodes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from memory_apiserver import Object, Server

from atoll_operator.api.group import (
    ACCELERATOR,
    ANNOTATION_INCARNATION,
    LABEL_POD_GROUP,
    LABEL_SLICE,
    LABEL_UNIT,
    NODE_POOL,
    TOPOLOGY,
    TPU,
)
from atoll_operator.kube.errors import NotFound
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.nodes import IMPENDING_TERMINATION
from atoll_operator.plan.unit.kueue import MANAGED, SIZE
from atoll_runtime.contract import EXIT_RESTART, LastWords

POOLS = {
    "one": [("tpu-v5p-slice", "2x2x1", 1)] * 4,
    "two": [("tpu-v6e-slice", "2x4", 2)] * 8,
}
"""By pool of the run, its node pools: accelerator, topology, hosts. All hosts have four chips."""


class PlayedCluster:
    """Everybody but API server, operator and syncer. Each is as slow as chance has it."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.server = server
        self.random = chance
        self.dead: set[str] = set()
        """Nodes that say nothing."""
        self.due: dict[str, float] = {}
        """When somebody does what is due with a pod, by its uid and what."""
        for body in _nodes():
            server.create(body)

    def fail_pod(self, pod: Object, exit_code: int, message: str = "", reason: str = "Error") -> None:
        """Its container ends, and with it the pod."""
        ended = {
            "exitCode": exit_code, "finishedAt": _now(), "startedAt": _now(), "message": message, "reason": reason,
        }  # fmt: skip
        phase = "Failed" if exit_code else "Succeeded"
        self.report(pod, phase=phase, containerStatuses=[_main(0, {"terminated": ended})])

    def fail_container(
        self, pod: Object, exit_code: int = 1, words: str = "AppError: broken", reason: str = "Error"
    ) -> None:
        """The kubelet starts the container again in its pod."""
        own = self.incarnation(pod)
        if own:
            self._restart(pod, exit_code, str(LastWords(own, words)), reason)

    def disrupt(self, pod: Object, by: str, **status: Any) -> None:
        """Somebody says why the pod is to end."""
        known = self.server.get("Pod", pod["metadata"]["name"])["status"].get("conditions", [])
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": by,
            "message": status.get("message", by),
        }
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
        """All are there again, as new; their old pods are gone."""
        for body in _nodes():
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

    def play(self) -> None:
        """Everybody does what is due."""
        self.server.collect_garbage()
        self._run_stateful_sets()
        for pod in list(self.server.every("Pod")):
            if pod["spec"].get("nodeName") in self.dead:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self._leave(pod)
            elif pod["spec"].get("schedulingGates"):
                self._admit(pod)
            elif not pod["spec"].get("nodeName"):
                self._schedule(pod)
            else:
                self._tend(pod)

    def _is_due(self, pod: Object, what: str, seconds: float) -> bool:
        """Some time after it was asked for the first time."""
        now = time.time()
        due = self.due.setdefault(f"{pod['metadata']['uid']} {what}", now + self.random.uniform(0, seconds))
        return now >= due

    def _admit(self, pod: Object) -> None:
        """As Kueue does: a group whose pods are all there, and it keeps each until its node has said that it ended."""
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        group = [
            other
            for other in self.server.every("Pod")
            if other["metadata"]["labels"].get(LABEL_POD_GROUP) == labels[LABEL_POD_GROUP]
        ]
        total = int(pod["metadata"]["annotations"][SIZE])
        if len(group) >= total and self._is_due(pod, "admit", 2.0):
            body = self.server.get("Pod", name)
            body["metadata"]["finalizers"] = [MANAGED]
            body["spec"].pop("schedulingGates")
            self.server.change(body)

    def _leave(self, pod: Object) -> None:
        if not self._is_due(pod, "leave", 3.0):
            return
        if pod["metadata"].get("finalizers") and pod["status"]["phase"] in ("Failed", "Succeeded"):
            body = self.server.get("Pod", pod["metadata"]["name"])
            body["metadata"].pop("finalizers")
            self.server.change(body)
            return
        kept = bool(pod["metadata"].get("finalizers"))
        if pod["status"]["phase"] in ("Pending", "Running") and (kept or self.random.random() < 0.5):
            self.fail_pod(pod, self.random.choice((0, 143)))
        else:
            self.server.delete("Pod", pod["metadata"]["name"], 0)

    def _schedule(self, pod: Object) -> None:
        if not self._is_due(pod, "schedule", 0.5):
            return
        selector = pod["spec"].get("nodeSelector", {})
        taken = {other["spec"].get("nodeName") for other in self.server.every("Pod") if _runs(other)}
        mine = _slice(pod)
        busy = {
            _pool(other["spec"].get("nodeName", ""))
            for other in self.server.every("Pod")
            if _runs(other) and _slice(other) != mine
        }
        unwanted = _unwanted_pools(pod)
        for node in sorted(
            self.server.every("Node"), key=lambda node: node["metadata"]["labels"][NODE_POOL] in unwanted
        ):
            name, labels = node["metadata"]["name"], node["metadata"]["labels"]
            ready = node["status"]["conditions"][0]["status"] == "True"
            if not ready or node.get("spec", {}).get("taints"):
                continue
            if not mine[0] or (
                name not in taken
                and labels[NODE_POOL] not in busy
                and all(labels.get(key) == value for key, value in selector.items() if key in labels)
                and selector[ACCELERATOR] == labels[ACCELERATOR]
            ):
                bound = self.server.get("Pod", pod["metadata"]["name"])
                bound["spec"]["nodeName"] = name
                told = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()}
                bound["status"] |= {"conditions": [told]}
                self.server.change(bound)
                return
        told = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits",
            "lastTransitionTime": format_time(self.due[f"{pod['metadata']['uid']} schedule"]),
        }  # fmt: skip
        self.report(pod, conditions=[told])

    def _tend(self, pod: Object) -> None:
        status = pod["status"]
        if status["phase"] == "Pending":
            if self._is_due(pod, "start", 2.0) and self._has_chips(pod):
                self.report(pod, phase="Running", containerStatuses=[_main(0, _running())], ready=True)
        elif status["phase"] == "Running" and (own := self.incarnation(pod)):
            told = int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION])
            if own < told and self._is_due(pod, f"restart {told}", 2.0):
                self._restart(pod, EXIT_RESTART, str(LastWords(own)))

    def _has_chips(self, pod: Object) -> bool:
        """Else the kubelet turns it away."""
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        if LABEL_UNIT not in pod["metadata"]["labels"]:
            return True
        for other in self.server.every("Pod"):
            there = other["spec"].get("nodeName") == node and other["status"]["phase"] == "Running"
            if there and LABEL_UNIT in other["metadata"]["labels"] and other["metadata"]["name"] != name:
                self.report(pod, phase="Failed", reason="OutOfgoogle.com/tpu", message="chips are in use")
                return False
        return True

    def incarnation(self, pod: Object) -> int:
        """That its process is of; 0 where it waits for another, or is of no unit."""
        if LABEL_UNIT not in pod["metadata"]["labels"] or pod["status"]["phase"] != "Running":
            return 0
        told = int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION])
        ended = pod["status"]["containerStatuses"][0].get("lastState", {}).get("terminated")
        if ended is None:
            return int(pod["metadata"]["name"].rsplit("-", 2)[1])
        last = LastWords.parse(ended["message"]).incarnation or 0
        return told if last < told else 0

    def _restart(self, pod: Object, exit_code: int, message: str, reason: str = "Error") -> None:
        [old] = pod["status"]["containerStatuses"]
        ended = {
            "exitCode": exit_code, "message": message, "startedAt": _now(), "finishedAt": _now(), "reason": reason,
        }  # fmt: skip
        new = _main(old["restartCount"] + 1, _running()) | {"lastState": {"terminated": ended}}
        self.report(pod, containerStatuses=[new])

    def report(self, pod: Object, ready: bool | None = None, **status: Any) -> None:
        """The kubelet reports this part of the pod's status."""
        body = self.server.get("Pod", pod["metadata"]["name"])
        if ready is not None:
            known = [each for each in body["status"].get("conditions", []) if each["type"] != "Ready"]
            status["conditions"] = [*known, {"type": "Ready", "status": "True" if ready else "False"}]
        body["status"] |= status
        self.server.change(body)

    def _run_stateful_sets(self) -> None:
        for body in list(self.server.every("StatefulSet")):
            name, spec = body["metadata"]["name"], body["spec"]
            mine = {
                pod["metadata"]["name"]: pod
                for pod in self.server.every("Pod")
                if pod["metadata"]["ownerReferences"][0]["uid"] == body["metadata"]["uid"]
            }
            wanted = {f"{name}-{number}" for number in range(spec["replicas"])}
            for pod in mine.keys() - wanted:
                self.server.delete("Pod", pod, 5)
            for pod in wanted - mine.keys():
                template = spec["template"]
                owner = {
                    "kind": "StatefulSet", "name": name, "uid": body["metadata"]["uid"], "controller": True,
                    "apiVersion": "apps/v1",
                }  # fmt: skip
                metadata = {
                    **template["metadata"],
                    "name": pod,
                    "namespace": "ns",
                    "ownerReferences": [owner],
                }
                self.server.create(
                    {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"]}}
                )

    def _node_of(self, pod: Object) -> str:
        """Empty where it has none, or that is gone."""
        name = pod["spec"].get("nodeName", "")
        return name if any(node["metadata"]["name"] == name for node in self.server.every("Node")) else ""

    def _node(self, name: str) -> Object:
        return self.server.get("Node", name)

    def ready(self, name: str, ready: bool) -> None:
        node = self._node(name)
        told = {"type": "Ready", "status": "True" if ready else "Unknown", "message": "silent"}
        self.server.change({**node, "status": {**node["status"], "conditions": [told]}})


def _nodes() -> Iterator[Object]:
    for pool, kinds in POOLS.items():
        for number, (accelerator, topology, hosts) in enumerate(kinds):
            for host in range(hosts):
                labels = {NODE_POOL: f"{pool}-{number}", ACCELERATOR: accelerator, TOPOLOGY: topology}
                metadata = {"name": f"{pool}-{number}-{host}", "labels": labels}
                ready = {"type": "Ready", "status": "True"}
                status = {"allocatable": {TPU: "4"}, "conditions": [ready]}
                yield {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def _unwanted_pools(pod: Object) -> set[str]:
    """Those that the pod would rather not run in."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return {
        pool for wish in wishes for each in wish["preference"]["matchExpressions"] for pool in each["values"]
    }


def _pool(node: str) -> str:
    return node.rpartition("-")[0]


def _runs(pod: Object) -> bool:
    return LABEL_UNIT in pod["metadata"]["labels"] and pod["status"]["phase"] in ("Pending", "Running")


def _slice(pod: Object) -> tuple[str, str]:
    """Unit and number; empty for a pod of none."""
    labels = pod["metadata"]["labels"]
    return labels.get(LABEL_UNIT, ""), labels.get(LABEL_SLICE, "")


def _now() -> str:
    return format_time(time.time())


def _running() -> Object:
    return {"running": {"startedAt": _now()}}


def _main(restarts: int, state: Object) -> Object:
    return {"name": "main", "restartCount": restarts, "state": state}
