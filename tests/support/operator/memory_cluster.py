"""Scheduler, kubelets, Kueue and the controllers of a cluster in memory."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable

from memory_accidents import Accidents, main, now, running
from memory_apiserver import Object

from atoll_operator.api import group
from atoll_operator.api.group import KUEUE_MANAGED as MANAGED
from atoll_operator.plan.conditions import format_time
from atoll_operator.plan.pods.gang import REQUIRED, SIZE
from atoll_runtime.contract import EXIT_RESTART, LastWords


class PlayedCluster(Accidents):
    """All parts of the cluster except API server, operator and syncer. Their delays are random."""

    _idle_version = -1
    """The server's version when a round last found nothing to do."""
    _idle_until = 0.0

    def play(self) -> None:
        """Let every part act once. Skip this if nothing changed since a round without work and nothing is due."""
        before = self.server.version
        if before == self._idle_version and time.time() < self._idle_until:
            return
        self._play()
        later = (due for due in self.due.values() if due > time.time())
        self._idle_version, self._idle_until = before, min(later, default=math.inf)

    def _play(self) -> None:
        self.server.collect_garbage()
        self._run_stateful_sets()
        for pod in list(self.server.every("Pod")):
            if pod["spec"].get("nodeName") in self.dead or pod["metadata"]["name"] in self.idle:
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
        """Whether a random time of at most `seconds` has passed since the first call for this."""
        key = f"{pod['metadata']['uid']} {what}"
        if key not in self.due:
            self.due[key] = time.time() + self.random.uniform(0, seconds)
        return time.time() >= self.due[key]

    def _admit(self, pod: Object) -> None:
        """Admit a pod like Kueue, when all pods of its group exist. Keep it by a finalizer until its node reports its
        end."""
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        every = (each["metadata"]["labels"] for each in self.server.every("Pod"))
        there = [each.get(group.LABEL_POD_GROUP) for each in every].count(labels[group.LABEL_POD_GROUP])
        if there >= int(pod["metadata"]["annotations"][SIZE]) and self._is_due(pod, "admit", 2.0):
            body = self.server.get("Pod", name)
            body["metadata"]["finalizers"] = [MANAGED]
            body["spec"].pop("schedulingGates")
            self.server.change(body)

    def _leave(self, pod: Object) -> None:
        if not self._is_due(pod, "leave", 3.0):
            return
        finalizers = pod["metadata"].get("finalizers", [])
        if MANAGED in finalizers and pod["status"]["phase"] in ("Failed", "Succeeded"):
            body = self.server.get("Pod", pod["metadata"]["name"])
            body["metadata"]["finalizers"].remove(MANAGED)
            self.server.change(body)
            return
        if pod["status"]["phase"] in ("Pending", "Running") and (finalizers or self.random.random() < 0.5):
            self.fail_pod(pod, self.random.choice((0, 143)))
        else:
            self.server.delete("Pod", pod["metadata"]["name"], 0)

    def _schedule(self, pod: Object) -> None:
        """Bind the pod as its spec allows, and the specs of the pods that have a node."""
        if not self._is_due(pod, "schedule", self.schedule_seconds):
            return
        bound = [each for each in self.server.every("Pod") if each["spec"].get("nodeName") and _runs(each)]
        unwanted = _unwanted_pools(pod)
        nodes = list(self.server.every("Node"))
        for node in sorted(nodes, key=lambda node: node["metadata"]["labels"][group.NODE_POOL] in unwanted):
            if self._fits(pod, node, bound):
                body = self.server.get("Pod", pod["metadata"]["name"])
                body["spec"]["nodeName"] = node["metadata"]["name"]
                told = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}
                body["status"] |= {"conditions": [told]}
                check_pools(filter(_runs, [*bound, self.server.change(body)]))
                return
        told = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits",
            "lastTransitionTime": format_time(self.due[f"{pod['metadata']['uid']} schedule"]),
        }  # fmt: skip
        self.report(pod, conditions=[told])

    def _fits(self, pod: Object, node: Object, bound: list[Object]) -> bool:
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        closed = node.get("spec", {}).keys() & {"taints", "unschedulable"}
        if node["status"]["conditions"][0]["status"] != "True" or closed:
            return False
        if group.LABEL_UNIT not in pod["metadata"]["labels"]:
            return True
        selector = pod["spec"]["nodeSelector"]
        asked = selector.keys() & {group.NODE_POOL, group.ACCELERATOR}
        if any(labels.get(key) != selector[key] for key in asked):
            return False
        named = {"kubernetes.io/hostname": name, **labels}
        affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
        for term in affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ()):
            if any(named[each["key"]] in each.get("values", ()) for each in term["matchExpressions"]):
                return False  # every operator is Exists or NotIn
        there = [each for each in bound if pool_of(each) == labels[group.NODE_POOL]]
        if any(each["spec"]["nodeName"] == name for each in there) or any(
            selects(pod, "podAntiAffinity", each) or selects(each, "podAntiAffinity", pod) for each in there
        ):
            return False
        if not terms(pod, "podAffinity"):
            return True
        peers = {pool_of(each) for each in bound if selects(pod, "podAffinity", each)}
        return labels[group.NODE_POOL] in peers or (not peers and selects(pod, "podAffinity", pod))

    def _tend(self, pod: Object) -> None:
        status = pod["status"]
        if status["phase"] == "Pending":
            if self._is_due(pod, "start", 2.0) and self._has_chips(pod):
                self.report(pod, phase="Running", containerStatuses=[main(0, running())], ready=True)
        elif status["phase"] == "Running" and (own := self.incarnation(pod)):
            told = int(pod["metadata"]["annotations"][group.ANNOTATION_INCARNATION])
            if own < told and self._is_due(pod, f"restart {told}", 2.0):
                self.restart(pod, EXIT_RESTART, str(LastWords(own)))

    def _has_chips(self, pod: Object) -> bool:
        """Whether the node has free chips for the pod. If not, the kubelet rejects the pod."""
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        if group.LABEL_UNIT not in pod["metadata"]["labels"]:
            return True
        there = [each for each in self.server.every("Pod") if each["spec"].get("nodeName") == node]
        others = [each for each in there if _runs(each) and each["metadata"]["name"] != name]
        if taken := any(each["status"]["phase"] == "Running" for each in others):
            self.report(pod, phase="Failed", reason="OutOfgoogle.com/tpu", message="chips are in use")
        return not taken

    def _run_stateful_sets(self) -> None:
        for body in list(self.server.every("StatefulSet")):
            name, spec = body["metadata"]["name"], body["spec"]
            there = {pod["metadata"]["name"]: pod["metadata"] for pod in self.server.every("Pod")}
            wanted = {f"{name}-{number}" for number in range(spec["replicas"])}
            for pod, metadata in there.items():
                owners = [each["uid"] for each in metadata.get("ownerReferences", ())]
                if body["metadata"]["uid"] in owners and pod not in wanted:
                    self.server.delete("Pod", pod, 5)
            for pod in sorted(wanted - there.keys()):
                template = spec["template"]
                owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "controller": True}
                owners = [owner | {"uid": body["metadata"]["uid"]}]
                own = {"name": pod, "namespace": "ns", "ownerReferences": owners}
                pod_body = {"apiVersion": "v1", "kind": "Pod", **template}
                self.server.create({**pod_body, "metadata": {**template["metadata"], **own}})


def _unwanted_pools(pod: Object) -> set[str]:
    """Node pools that the pod prefers not to run in."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    rules = [rule for wish in wishes for rule in wish["preference"]["matchExpressions"]]
    return {pool for rule in rules for pool in rule["values"]}


def _runs(pod: Object) -> bool:
    return group.LABEL_UNIT in pod["metadata"]["labels"] and pod["status"]["phase"] in ("Pending", "Running")


def pool_of(pod: Object) -> str:
    return str(pod["spec"]["nodeName"]).rpartition("-")[0]


def terms(pod: Object, kind: str) -> list[Object]:
    rules = pod["spec"].get("affinity", {}).get(kind, {})
    return list(rules.get(REQUIRED, []))


def selects(one: Object, kind: str, other: Object) -> bool:
    """Whether a required term of this kind in `one` matches `other`; all pods are in one namespace."""
    labels = other["metadata"]["labels"]

    def holds(rule: Object) -> bool:
        key = rule["key"]
        return key in labels if rule["operator"] == "Exists" else labels.get(key) not in rule["values"]

    return any(
        term["labelSelector"].get("matchLabels", {}).items() <= labels.items()
        and all(map(holds, term["labelSelector"].get("matchExpressions", [])))
        for term in terms(one, kind)
    )


def check_pools(bound: Iterable[Object]) -> None:
    """Assert that no node pool is held by two slices, and no slice is in two node pools. Units are distinguished by
    uid, because pods of a deleted unit may still end while another unit of its name begins. That one counts from 1 as
    long as the syncer knows neither."""
    holders, places = defaultdict[str, set[str]](set), defaultdict[tuple[str, ...], set[str]](set)
    for pod in bound:
        labels, [unit] = pod["metadata"]["labels"], pod["metadata"]["ownerReferences"]
        places[unit["uid"], labels[group.LABEL_PLACEMENT], labels[group.LABEL_SLICE]].add(pool_of(pod))
        if group.LABEL_HOLDS in labels:
            holders[pool_of(pod)].add(labels[group.LABEL_HOLDS])
    assert all(len(held) == 1 for held in (*holders.values(), *places.values())), (holders, places)
