"""What is known of runs, units, pods and nodes, and which key is reconciled when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from typing import Any

import pytest
from leaping import leap
from memory_apiserver import Server
from memory_client import MemoryCluster

from atoll_operator.kube.cache import Change, Key, Object
from atoll_operator.kube.errors import Conflict
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.metrics.process import Metrics
from atoll_operator.operator import RECONCILERS
from atoll_operator.plan.pods.view import PodView
from atoll_operator.reconcilers.controller import Controller, Memory
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.run import RunReconciler
from atoll_operator.reconcilers.unit import UnitReconciler
from atoll_operator.reconcilers.wakeups import (
    FIGURES_SECONDS,
    RUN_SECONDS,
    STARTING_SECONDS,
    wakeups,
)
from atoll_operator.settings import Settings

UNITS = 400
SLOW_UNIT = FIGURES_SECONDS["LearnerUnit"]
RUN, UNIT = Key("TrainingRun", "n", "r"), Key("LearnerUnit", "n", "u")
OF_UNIT = {"atoll.dev/run": "r", "atoll.dev/unit": "u"}


def thing(kind: str, version: int, name: str = "", owner: str = "unit", **more: Any) -> Object:
    name = name or {"LearnerUnit": "u", "TrainingRun": "r", "Node": "n1"}.get(kind, "x")
    metadata = {
        "name": name, "namespace": "" if kind == "Node" else "n", "uid": name, "resourceVersion": str(version),
        "labels": OF_UNIT, "ownerReferences": [{"uid": owner, "controller": True}], "generation": 1,
    }  # fmt: skip
    return {"metadata": metadata | more.pop("metadata", {}), **more}


class World:
    """An inventory with a pod on the node `n1`, and who is woken by each event."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.put("Pod", 1, "first", spec={"nodeName": "n1"})

    def put(self, kind: str, version: int, name: str = "", **more: Any) -> dict[Key, float]:
        return self._woken(self.inventory.put(kind, thing(kind, version, name, **more)))

    def drop(self, kind: str, version: int, **more: Any) -> dict[Key, float]:
        return self._woken(self.inventory.drop(kind, thing(kind, version, **more)))

    def keep(self, kind: str, names: set[str], version: int) -> dict[Key, float]:
        present = {Key(kind, "", name) for name in names}
        return self._woken(*self.inventory.keep(kind, "", present, version))

    def pods(self) -> tuple[PodView, ...]:
        return self.inventory.pods_of(UNIT, "unit")

    def _woken(self, *changes: Change | None) -> dict[Key, float]:
        found = (wakeups(change, self.inventory) for change in changes if change is not None)
        return dict(itertools.chain.from_iterable(found))


def test_a_run_and_a_unit_have_their_own_pods_until_a_fresh_list_lacks_them() -> None:
    world = World()
    for version, name in enumerate(["r-syncer-0", "r-syncer-1", "r-evaluator-0"], 2):
        labels = {"atoll.dev/run": "r", "atoll.dev/component": name.split("-")[1]}
        assert world.put("Pod", version, name, metadata={"labels": labels}) == {RUN: 0.0}
    assert [pod.name for pod in world.inventory.set_pods(RUN, "r-syncer")] == ["r-syncer-0", "r-syncer-1"]
    assert [pod.name for pod in world.inventory.set_pods(RUN, "r-evaluator")] == ["r-evaluator-0"]
    world.put("Pod", 6, "c", owner="an-earlier-unit")
    assert [pod.name for pod in world.pods()] == ["first"]
    world.inventory.replace_pods(UNIT, [thing("Pod", 7, "b")], 7)
    assert [pod.name for pod in world.pods()] == ["b"]


def test_a_deleted_node_is_remembered_until_one_of_its_name_comes_back() -> None:
    world = World()
    for name in ("n1", "n2"):
        world.put("Node", 1, name)
    assert world.keep("Node", {"n1", "n2"}, 9) == {}
    assert world.keep("Node", {"n2"}, 9) == AT_ONCE
    assert world.inventory.nodes_of(world.pods())["n1"].gone
    assert world.put("Node", 10, metadata={"uid": "new"})
    assert not world.inventory.nodes_of(world.pods())["n1"].gone


READY, UNREADY = ({"conditions": [{"type": "Ready", "status": status}]} for status in ("True", "False"))
AT_ONCE, SOON, NOT = {UNIT: 0.0}, {UNIT: STARTING_SECONDS}, {}
PENDING, GIVEN = {"phase": "Pending"}, {"nodeSelector": {"cloud.google.com/gke-nodepool": "p"}}
TERMINATING = {"metadata": {"deletionTimestamp": "2026-11-23T08:00:00Z"}}
OF_RUN, OF_OTHERS = ({"metadata": {"labels": labels}} for labels in ({"atoll.dev/run": "r"}, {}))
GONE: Object = {}
CHANGES: list[tuple[str, str, list[Object], dict[Key, float]]] = [
    ("Pod", "is new", [{"status": PENDING}], AT_ONCE),
    ("Pod", "nothing that matters", [{"status": PENDING}, {"status": {**PENDING, "hostIP": "10.1"}}], NOT),
    ("Pod", "runs", [{"status": PENDING}, {"status": {"phase": "Running", **UNREADY}}], SOON),
    ("Pod", "becomes ready", [{"status": UNREADY}, {"status": READY}], SOON),
    ("Pod", "is not ready any more", [{"status": READY}, {"status": UNREADY}], AT_ONCE),
    ("Pod", "failed", [{"status": {"phase": "Running"}}, {"status": {"phase": "Failed"}}], AT_ONCE),
    ("Pod", "bound, its pool given", [{"spec": GIVEN}, {"spec": {**GIVEN, "nodeName": "n2"}}], SOON),
    ("Pod", "bound, its pool chosen", [{"spec": {}}, {"spec": {"nodeName": "n2"}}], AT_ONCE),
    ("Pod", "gone", [{"spec": {}}, GONE], AT_ONCE),
    ("Pod", "gone as was told", [TERMINATING, GONE], SOON),
    ("Node", "is new", [{"spec": {}}], AT_ONCE),
    ("Node", "nothing that matters", [{"spec": {}}, {"status": {"conditions": []}}], NOT),
    ("Node", "cordoned", [{"spec": {}}, {"spec": {"unschedulable": True}}], AT_ONCE),
    ("LearnerUnit", "changes", [{"spec": {"run": "r"}}], {UNIT: 0.0, RUN: RUN_SECONDS}),
    ("LearnerUnit", "gone", [{"spec": {"run": "r"}}, GONE], {UNIT: 0.0, RUN: 0.0}),
    ("TrainingRun", "changes", [{"spec": {}, **OF_RUN}], {RUN: 0.0}),
    ("StatefulSet", "changes", [OF_RUN], {RUN: 0.0}),
    ("Secret", "made by its owner", [{"data": {}}], NOT),
    ("Secret", "changed by others", [{"data": {}}, {"data": {}}], SOON),
    ("Secret", "gone", [{"data": {}}, GONE], SOON),
    ("Service", "of a run", [OF_RUN, OF_RUN], {RUN: STARTING_SECONDS}),
    ("Service", "of others", [OF_OTHERS, OF_OTHERS], NOT),
]


@pytest.mark.parametrize(
    ("kind", "what", "states", "woken"), CHANGES, ids=[f"{r[0]} {r[1]}" for r in CHANGES]
)
def test_a_change_wakes_whom_it_concerns_when_it_matters(
    kind: str, what: str, states: list[Object], woken: dict[Key, float]
) -> None:
    world, last = World(), {}
    for version, state in enumerate(states, 2):
        last = world.drop(kind, version, **states[0]) if state is GONE else world.put(kind, version, **state)
    assert last == woken


class OneUnit:
    """A unit on an API server, and a queue that notes its passes."""

    def __init__(self) -> None:
        self.server = Server(random.Random(0))
        metadata = {"name": "u", "namespace": "ns"}
        body = {"apiVersion": "v", "kind": "LearnerUnit", "metadata": metadata, "spec": {"run": "r"}}
        self.inventory, self.memory = Inventory(), Memory("u")
        self.inventory.put("LearnerUnit", self.server.create(body))
        self.passes: list[tuple[str, float]] = []
        self.queue: WorkQueue[Key] = WorkQueue(self._note)
        settings, metrics = Settings(runtime_image="i"), Metrics()
        controller = Controller(settings, MemoryCluster(self.server, metrics), self.inventory, metrics, {})
        controller.queue = self.queue
        self.reconciler = UnitReconciler(controller)

    async def _note(self, key: Key) -> None:
        self.passes.append((key.kind, asyncio.get_running_loop().time()))

    async def write(self, **status: Any) -> bool:
        """Whether the API server has the status now."""
        key = Key("LearnerUnit", "ns", "u")
        body = self.inventory.get(key)
        assert body is not None
        await self.reconciler._write(key, body, status, self.memory)
        return self.server.get("LearnerUnit", "u").get("status") == status


def test_figures_wait_for_their_turn_and_anything_else_is_written_at_once_and_wakes_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "atoll_operator.reconcilers.controller.time.monotonic", lambda: asyncio.get_running_loop().time()
    )

    async def work() -> None:
        unit = OneUnit()
        working = asyncio.create_task(unit.queue.run())
        assert await unit.write(phase="Learning", step=1)
        assert not await unit.write(phase="Learning", step=2)
        await asyncio.sleep(SLOW_UNIT)
        (run, at), (waits, put_off) = unit.passes
        assert (run, waits) == ("TrainingRun", "LearnerUnit") and at < 0.1
        assert 0.8 * SLOW_UNIT <= put_off - at <= SLOW_UNIT + 0.1
        assert await unit.write(phase="Learning", step=3)
        assert await unit.write(phase="Healing", step=3)
        assert await unit.write(phase="Healing", step=3), "nothing to write"
        await asyncio.sleep(1)
        assert [kind for kind, _ in unit.passes[2:]] == ["TrainingRun"], "figures alone do not wake it"
        unit.server.change(unit.server.get("LearnerUnit", "u") | {"spec": {"run": "s"}})
        with pytest.raises(Conflict):
            await unit.write(phase="Learning")
        working.cancel()

    leap(work())


def test_each_object_is_looked_at_once_in_the_time_of_a_resync_and_never_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inventory, metrics, settings = Inventory(), Metrics(), Settings(runtime_image="i", resync_seconds=300)
    for kind, name in [("TrainingRun", "r"), *(("LearnerUnit", f"r-p-{n}") for n in range(UNITS))]:
        inventory.put(kind, thing(kind, 1, name, spec={"run": "r"}))
    times: dict[Key, list[float]] = {}

    async def note(_: object, key: Key) -> None:
        times.setdefault(key, []).append(asyncio.get_running_loop().time())

    monkeypatch.setattr(RunReconciler, "__call__", note)
    monkeypatch.setattr(UnitReconciler, "__call__", note)

    async def work() -> None:
        client = MemoryCluster(Server(random.Random(0)), metrics)
        controller = Controller(settings, client, inventory, metrics, RECONCILERS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(controller.run(inventory.keys("TrainingRun", "LearnerUnit")), 600)

    leap(work())
    assert len(times) == 1 + UNITS
    for first, second, third, *_ in times.values():
        assert first == 0 and 240 <= second <= 300 and 240 <= third - second <= 300
    in_seconds = Counter(int(passes[1]) for passes in times.values())
    assert max(in_seconds.values()) < UNITS / 15, "a failure waits for few of them"
