"""A whole world around the operator's own parts in one process and no time: its queue, watches, plans and writes are
those of the real one; API server, scheduler, kubelets, controllers and syncer are played.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from memory_apiserver import MemoryCluster, Object, Refusal, Server, copied
from objects import RUN

from atoll_operator import term as term_module
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
from atoll_operator.credentials import Credentials
from atoll_operator.feed import Feeds
from atoll_operator.keys import Key
from atoll_operator.metrics import Metrics
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.kueue import MANAGED, SIZE
from atoll_operator.plan.shards import UNAVAILABLE, CutOrder, FeedState, cut_step, heard
from atoll_operator.settings import Settings
from atoll_operator.store import Store
from atoll_operator.term import Term
from atoll_operator.watches import SELECTORS, _NodeSink, _Sink
from atoll_runtime.contract import (
    EXIT_RESTART,
    CheckpointReport,
    LastWords,
    SyncerStatus,
    UnitReport,
)

BEGIN = 1_800_000_000.0
_CREDENTIALS = Credentials("http://nowhere", ssl.create_default_context())
TICK_SECONDS = 0.2
POOLS = {
    "one": [("tpu-v5p-slice", "2x2x1", 1)] * 4,
    "two": [("tpu-v6e-slice", "2x4", 2)] * 8,
}
"""By pool of the run, its node pools: accelerator, topology, hosts. All hosts have four chips."""
SPEC: Object = {
    **RUN["spec"],
    "pools": [
        {"name": "one", "accelerator": "tpu-v5p-slice", "topology": "2x2x1", "units": 1},
        {
            "name": "two", "accelerator": "tpu-v6e-slice", "topology": "2x4",
            "machineType": "ct6e-standard-4t", "units": 2,
        },
    ],
    "recovery": {"maxRestarts": 1000, "startupSeconds": 60, "hangSeconds": 120},
}  # fmt: skip


class World:
    """Use inside `leap`. Time is that of the loop, `BEGIN` at its start."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = Server(self.random)
        self.dead: set[str] = set()
        """Nodes that say nothing."""
        self.finished = False
        self.step = 0
        self._merges = False
        """A unit learns."""
        self._saved = -1
        self._due: dict[str, float] = {}
        """When somebody does what is due with a pod, by its uid and what."""
        self._merged: dict[str, tuple[int, float]] = {}
        """Unit to its incarnation that learns, and since when."""
        self._known: dict[str, int] = {}
        """Unit to the newest incarnation that the syncer knows."""
        self.turned_away = 0
        """Pods, by kubelets whose chips others have."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._operator: list[asyncio.Task[Any]] = []
        self._dead: list[asyncio.Task[Any]] = []
        """Of operators before it."""
        self.term: Term

    async def begin(self) -> None:
        """The run is applied, and an operator leads."""
        self.operate()
        self._tasks.append(asyncio.create_task(self._play()))
        await asyncio.sleep(0)
        for body in _nodes():
            self.server.create(body)
        self.server.create({**RUN, "metadata": {"name": "r", "namespace": "ns"}, "spec": self._spec()})

    def _spec(self) -> Object:
        """Of one of several kinds of run."""
        one, two = SPEC["pools"]
        slices = self.random.choice((1, 1, 2))
        recovery = {"forceDelete": self.random.random() < 0.5, "inPlace": self.random.random() < 0.8}
        queue = {"queueName": "team"} if self.random.random() < 0.2 else {}
        pools = [one, {**two, "slicesPerUnit": slices}]
        return {**SPEC, "pools": pools, "recovery": {**SPEC["recovery"], **recovery}, **queue}

    def operate(self) -> None:
        """An operator starts; one that was there dies."""
        for task in self._operator:
            task.cancel()
        self._dead += self._operator
        self._operator.clear()
        store, metrics, settings = Store(), Metrics(), Settings(runtime_image="i", resync_seconds=86_400)
        cluster = MemoryCluster(self.server, _CREDENTIALS, metrics)
        world = self

        class Heard(Feeds):
            async def _poll(self, session: Any, place: Any, old: FeedState) -> FeedState:
                status = world.say(place.uid)
                if status is None:
                    return self._lost(old, place, UNAVAILABLE, "nobody answers")
                return heard(old, status, time.time(), time.monotonic())

            async def _order(self, session: Any, places: Any, states: Any, feed: Any) -> None:
                if (step := cut_step(states, feed.cut)) is not None:
                    feed.cut, world._saved = CutOrder(step), step

        with patch.object(term_module, "Feeds", Heard):
            term = self.term = Term(settings, cluster, store, metrics)
        sinks: dict[str, Any] = {kind: _Sink(kind, "", store, term.changed) for kind in SELECTORS}
        sinks["Node"] = _NodeSink(store, term.changed)
        for kind, sink in sinks.items():
            for body in self.server.every(kind):
                sink.seen(copied(body))
            self._operator.append(asyncio.create_task(self.server.watch(kind, _teller(sink))))
        known = store.keys("TrainingRun", "LearnerUnit")
        self._operator.append(asyncio.create_task(term.run(known)))

    async def end(self) -> None:
        """Raises what ended a part of the world before."""
        self.check()
        for task in (*self._tasks, *self._operator):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._operator, *self._dead, return_exceptions=True)

    def check(self) -> None:
        """Raises what ended a part of the world."""
        for task in (*self._tasks, *self._operator):
            if task.done():
                task.result()

    # What may happen.

    def pods(self, unit: str = "") -> list[Object]:
        """Those of learners that nobody deletes, in order of names."""
        found = (pod for pod in self.server.every("Pod") if "deletionTimestamp" not in pod["metadata"])
        named = ((pod["metadata"]["labels"].get(LABEL_UNIT, ""), pod) for pod in found)
        chosen = (pod for name, pod in named if name and unit in ("", name))
        return sorted(chosen, key=lambda pod: str(pod["metadata"]["name"]))

    def planned(self) -> list[Key]:
        """Of the run and its units."""
        return [key for key in self.server.objects if key.kind in ("TrainingRun", "LearnerUnit")]

    def change_run(self, **spec: Any) -> None:
        run = self.server.get("TrainingRun", "r")
        self.server.change({**run, "spec": {**run["spec"], **spec}})

    def resize(self, units: int) -> None:
        """So many more of the second pool, from 0 to 3."""
        [one, two] = self.server.get("TrainingRun", "r")["spec"]["pools"]
        self.change_run(pools=[one, {**two, "units": min(max(two["units"] + units, 0), 3)}])

    def fail_pod(self, pod: Object, exit_code: int) -> None:
        ended = {"exitCode": exit_code, "finishedAt": _now(), "startedAt": _now(), "message": ""}
        phase = "Failed" if exit_code else "Succeeded"
        self._status(pod, phase=phase, containerStatuses=[_main(0, {"terminated": ended})])

    def fail_container(self, pod: Object) -> None:
        own = self._incarnation(pod)
        if own:
            self._restart(pod, 1, str(LastWords(own, "AppError: broken")))

    def lose_node(self, pod: Object, gone: bool) -> None:
        if name := self._node_of(pod):
            self.dead.add(name)
            if gone:
                self.server.delete("Node", name)
            else:
                self._ready(name, False)

    def taint_node(self, pod: Object) -> None:
        if name := self._node_of(pod):
            node = self._node(name)
            taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
            self.server.change({**node, "spec": {"taints": [taint]}})

    def mend_nodes(self) -> None:
        """All are there again, as new; their old pods are gone."""
        for body in _nodes():
            name = body["metadata"]["name"]
            try:
                node = self._node(name)
            except Refusal:
                self.server.create(body)
                continue
            self.server.change({**node, "spec": {}, "status": body["status"]})
        for pod in list(self.server.every("Pod")):
            if pod["spec"].get("nodeName") in self.dead:
                self.server.delete("Pod", pod["metadata"]["name"], 0)
        self.dead.clear()

    # The cluster.

    async def _play(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS * self.random.uniform(0.5, 1.0))
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
            self.step += self._merges

    def _is_due(self, pod: Object, what: str, seconds: float) -> bool:
        """Some time after it was asked for the first time."""
        now = time.time()
        due = self._due.setdefault(f"{pod['metadata']['uid']} {what}", now + self.random.uniform(0, seconds))
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
        for node in self.server.every("Node"):
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
            "lastTransitionTime": format_time(self._due[f"{pod['metadata']['uid']} schedule"]),
        }  # fmt: skip
        self._status(pod, conditions=[told])

    def _tend(self, pod: Object) -> None:
        status = pod["status"]
        if status["phase"] == "Pending":
            if self._is_due(pod, "start", 2.0) and self._has_chips(pod):
                self._status(pod, phase="Running", containerStatuses=[_main(0, _running())], ready=True)
        elif status["phase"] == "Running" and (own := self._incarnation(pod)):
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
                self.turned_away += 1
                self._status(pod, phase="Failed", reason="OutOfgoogle.com/tpu", message="chips are in use")
                return False
        return True

    def _incarnation(self, pod: Object) -> int:
        """That its process is of; 0 where it waits for another, or is of no unit."""
        if LABEL_UNIT not in pod["metadata"]["labels"] or pod["status"]["phase"] != "Running":
            return 0
        told = int(pod["metadata"]["annotations"][ANNOTATION_INCARNATION])
        ended = pod["status"]["containerStatuses"][0].get("lastState", {}).get("terminated")
        if ended is None:
            made = int(pod["metadata"]["name"].split("-")[-2])
            return made
        last = LastWords.parse(ended["message"]).incarnation or 0
        return told if last < told else 0

    def _restart(self, pod: Object, exit_code: int, message: str) -> None:
        [old] = pod["status"]["containerStatuses"]
        ended = {"exitCode": exit_code, "message": message, "startedAt": _now(), "finishedAt": _now()}
        new = _main(old["restartCount"] + 1, _running()) | {"lastState": {"terminated": ended}}
        self._status(pod, containerStatuses=[new])

    def _status(self, pod: Object, ready: bool | None = None, **status: Any) -> None:
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

    def say(self, uid: str) -> SyncerStatus | None:
        """What the syncer answers; None while it does not run."""
        pods = [pod for pod in self.server.every("Pod") if pod["metadata"]["name"] == "r-syncer-0"]
        if not pods or pods[0]["status"]["phase"] != "Running" or pods[0]["spec"]["nodeName"] in self.dead:
            self._merges = False
            return None
        units = {}
        for unit in self.server.every("LearnerUnit"):
            name = unit["metadata"]["name"]
            hosts = unit["spec"]["slices"] * 2 if "-two-" in name else 1
            alive = [
                pod for pod in self.server.every("Pod") if pod["metadata"]["labels"].get(LABEL_UNIT) == name
            ]
            own = [self._incarnation(pod) for pod in alive if pod["spec"].get("nodeName") not in self.dead]
            newest = max(own, default=0)
            if newest and own.count(newest) == hosts and newest >= self._known.get(name, 0):
                if self._merged.get(name, (0, 0.0))[0] != newest:
                    self._merged[name] = newest, time.time()
                self._known[name] = newest
                units[name] = UnitReport(
                    incarnation=newest, hosts=hosts, state="Learning", step=self.step, seeded_step=0,
                    first_merge_time=self._merged[name][1], contributions=1 + self.step,
                )  # fmt: skip
            elif name in self._known:
                units[name] = UnitReport(incarnation=self._known[name], hosts=0, state="Gone", seeded_step=0)
        self._merges = any(unit.state == "Learning" for unit in units.values())
        saved = CheckpointReport(
            newest_step=max(self._saved, 0), current=self._saved >= self.step, orderable=self.step
        )
        return SyncerStatus(
            run_uid=uid, phase="Finished" if self.finished else "Running", global_step=self.step,
            target_steps=100_000, units=units, checkpoint=saved, time=time.time(),
            final_checkpoint="gs://bucket/run/final" if self.finished else "",
        )  # fmt: skip

    def _node_of(self, pod: Object) -> str:
        """Empty where it has none, or that is gone."""
        name = pod["spec"].get("nodeName", "")
        return name if any(node["metadata"]["name"] == name for node in self.server.every("Node")) else ""

    def _node(self, name: str) -> Object:
        return self.server.get("Node", name)

    def _ready(self, name: str, ready: bool) -> None:
        node = self._node(name)
        told = {"type": "Ready", "status": "True" if ready else "Unknown", "message": "silent"}
        self.server.change({**node, "status": {**node["status"], "conditions": [told]}})


def clocks() -> Any:
    """A context in which `time` tells the loop's time."""
    loop = asyncio.get_running_loop()
    return patch.multiple(time, time=lambda: BEGIN + loop.time(), monotonic=loop.time)


def _teller(sink: Any) -> Any:
    def told(event: str, body: Object) -> None:
        (sink.gone if event == "DELETED" else sink.seen)(body)

    return told


def _nodes() -> Iterator[Object]:
    for pool, kinds in POOLS.items():
        for number, (accelerator, topology, hosts) in enumerate(kinds):
            for host in range(hosts):
                labels = {NODE_POOL: f"{pool}-{number}", ACCELERATOR: accelerator, TOPOLOGY: topology}
                metadata = {"name": f"{pool}-{number}-{host}", "namespace": "ns", "labels": labels}
                ready = {"type": "Ready", "status": "True"}
                status = {"allocatable": {TPU: "4"}, "conditions": [ready]}
                yield {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


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
