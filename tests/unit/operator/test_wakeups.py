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
from atoll_operator.operator import Controller
from atoll_operator.plan.run.syncer_state import StatusDiff
from atoll_operator.reconcilers.inventory import Inventory, parent_key
from atoll_operator.reconcilers.run import RunReconciler
from atoll_operator.reconcilers.unit import Memory, StatusWriter, UnitReconciler
from atoll_operator.reconcilers.wakeups import (
    FIGURES_SECONDS,
    RUN_SECONDS,
    STARTING_SECONDS,
    report_wakeups,
    wakeups,
)
from atoll_operator.settings import Settings

UNITS = 400
SLOW_UNIT = FIGURES_SECONDS["LearnerUnit"]
RUN, UNIT = Key("TrainingRun", "n", "r"), Key("LearnerUnit", "n", "u")
OURS = {"app.kubernetes.io/managed-by": "atoll"}
OF_UNIT = {"atoll.dev/run": "r", "atoll.dev/unit": "u"}


def thing(version: int, name: str = "x", owner: str = "unit", uid: str = "", **more: Any) -> Object:
    references = [{"uid": owner, "controller": True}] if owner else []
    metadata = {
        "name": name, "namespace": "n", "uid": uid or name, "resourceVersion": str(version),
        "labels": more.pop("labels", OF_UNIT), "ownerReferences": references, "generation": 1,
    }  # fmt: skip
    return {"metadata": metadata, **more}


def node(name: str, version: int = 1, **more: Any) -> Object:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, **more}


class World:
    """An inventory, and who is woken by each event."""

    def __init__(self) -> None:
        self.inventory = Inventory()

    def put(self, kind: str, body: Object) -> dict[Key, float]:
        return self._woken(self.inventory.put(kind, body))

    def drop(self, kind: str, body: Object) -> dict[Key, float]:
        return self._woken(self.inventory.drop(kind, body))

    def keep(self, kind: str, names: set[tuple[str, str]], version: int) -> dict[Key, float]:
        return self._woken(*self.inventory.keep(kind, "", names, version))

    def _woken(self, *changes: Change | None) -> dict[Key, float]:
        found = (wakeups(change, self.inventory) for change in changes if change is not None)
        return dict(itertools.chain.from_iterable(found))


def test_a_run_has_the_pods_of_its_syncer_and_of_its_evaluator_apart() -> None:
    world = World()
    names = ["r-syncer-0", "r-syncer-1", "r-evaluator-0"]
    for component, name in zip(("syncer", "syncer", "evaluator"), names, strict=True):
        labels = {"atoll.dev/run": "r", "atoll.dev/component": component}
        assert world.put("Pod", thing(1, name, labels=labels)) == {RUN: 0.0}
    assert [pod.name for pod in world.inventory.set_pods(RUN, "r-syncer")] == names[:2]
    assert [pod.name for pod in world.inventory.set_pods(RUN, "r-evaluator")] == names[2:]


def test_a_unit_has_the_pods_that_it_owns_until_a_fresh_list_lacks_them() -> None:
    world = World()
    world.put("Pod", thing(5, "a"))
    world.put("Pod", thing(6, "c", owner="an-earlier-unit"))
    assert [pod.name for pod in world.inventory.pods_of(UNIT, "unit")] == ["a"]
    world.inventory.replace_pods(UNIT, [thing(7, "b")])
    assert [pod.name for pod in world.inventory.pods_of(UNIT, "unit")] == ["b"]


def test_a_deleted_node_is_remembered_until_one_of_its_name_comes_back() -> None:
    world = World()
    world.put("Pod", thing(1, spec={"nodeName": "n1"}))
    world.put("Node", node("n1"))
    world.put("Node", node("n2"))
    pods = world.inventory.pods_of(UNIT, "unit")
    assert world.keep("Node", {("", "n1"), ("", "n2")}, 9) == {}
    assert world.keep("Node", {("", "n2")}, 9) == {UNIT: 0.0}
    assert world.inventory.nodes_of(pods)["n1"].gone
    assert world.put("Node", {**node("n1", 10), "metadata": {**node("n1", 10)["metadata"], "uid": "new"}})
    assert not world.inventory.nodes_of(pods)["n1"].gone


def test_only_a_change_of_what_matters_of_a_node_wakes_the_units_on_it() -> None:
    world = World()
    world.put("Pod", thing(1, spec={"nodeName": "n1"}))
    assert world.put("Node", node("n1")) == {UNIT: 0.0}
    assert world.put("Node", node("n1", 2, status={"conditions": []})) == {}
    assert world.put("Node", node("n1", 3, spec={"unschedulable": True})) == {UNIT: 0.0}


def test_a_unit_wakes_itself_at_once_and_its_run_soon() -> None:
    world, unit = World(), thing(1, "u", spec={"run": "r"})
    assert world.put("LearnerUnit", unit) == {UNIT: 0.0, RUN: RUN_SECONDS}
    assert world.drop("LearnerUnit", thing(2, "u", spec={"run": "r"})) == {UNIT: 0.0, RUN: 0.0}
    assert world.put("TrainingRun", thing(3, "r", spec={})) == {RUN: 0.0}


READY, UNREADY = ({"conditions": [{"type": "Ready", "status": status}]} for status in ("True", "False"))
AT_ONCE, SOON, NOT = {UNIT: 0.0}, {UNIT: STARTING_SECONDS}, {}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({"phase": "Pending"}, {"phase": "Pending", "hostIP": "10.0.0.1"}, NOT, id="nothing"),
        pytest.param({"phase": "Pending"}, {"phase": "Running", **UNREADY}, SOON, id="runs"),
        pytest.param(UNREADY, READY, SOON, id="becomes-ready"),
        pytest.param(READY, UNREADY, AT_ONCE, id="is-not-ready-any-more"),
        pytest.param({"phase": "Running"}, {"phase": "Failed"}, AT_ONCE, id="failed"),
    ],
)
def test_a_pod_that_comes_up_wakes_its_unit_soon_and_one_that_fails_at_once(
    before: Object, after: Object, expected: dict[Key, float]
) -> None:
    world = World()
    assert world.put("Pod", thing(1, status=before)) == AT_ONCE
    assert world.put("Pod", thing(2, status=after)) == expected


@pytest.mark.parametrize(
    ("pool", "expected"), [pytest.param("p", SOON, id="pool-given"), pytest.param("", AT_ONCE, id="chosen")]
)
def test_a_pod_that_chose_its_pool_wakes_its_unit_at_once(pool: str, expected: dict[Key, float]) -> None:
    selector = {"cloud.google.com/gke-nodepool": pool} if pool else {}
    world = World()
    world.put("Pod", thing(1, spec={"nodeSelector": selector}))
    assert world.put("Pod", thing(2, spec={"nodeSelector": selector, "nodeName": "n1"})) == expected


def test_a_deleted_pod_wakes_its_unit_at_once_unless_its_deletion_was_seen() -> None:
    world = World()
    world.put("Pod", thing(1))
    assert world.drop("Pod", thing(2)) == AT_ONCE
    terminating = thing(3, uid="second")
    terminating["metadata"]["deletionTimestamp"] = "2026-11-23T08:00:00Z"
    world.put("Pod", terminating)
    assert world.drop("Pod", terminating) == SOON


def test_an_owned_object_that_others_change_or_delete_wakes_its_owner() -> None:
    world = World()
    assert world.put("Secret", thing(3)) == NOT, "its owner made it"
    assert world.put("Secret", thing(5)) == SOON
    assert world.drop("Secret", thing(6)) == SOON
    world.put("Service", thing(7, uid="s"))
    assert world.keep("Service", set(), 6) == NOT
    assert world.keep("Service", set(), 8) == SOON


@pytest.mark.parametrize(
    ("kind", "labels", "parent"),
    [
        pytest.param("Service", OF_UNIT, UNIT, id="of-a-unit"),
        pytest.param("Service", {"atoll.dev/run": "r"}, RUN, id="of-a-run"),
        pytest.param("Service", {}, None, id="of-others"),
        pytest.param("TrainingRun", {"atoll.dev/run": "r"}, None, id="a-run-with-labels"),
    ],
)
def test_the_parent_of_an_object_is_in_its_labels(
    kind: str, labels: dict[str, str], parent: Key | None
) -> None:
    assert parent_key(kind, thing(1, labels=labels)) == parent


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        pytest.param(StatusDiff(), [], id="figures-alone"),
        pytest.param(StatusDiff(run=True), ["r"], id="the-run-changed"),
        pytest.param(StatusDiff(run=True, units=frozenset({"a"})), ["r", "a"], id="one-unit-changed"),
        pytest.param(StatusDiff(run=True, every_unit=True), ["r", "a", "b"], id="the-syncer-came"),
    ],
)
def test_a_report_wakes_at_once_what_changed(diff: StatusDiff, expected: list[str]) -> None:
    inventory = Inventory()
    for version, name in enumerate(("a", "b"), 1):
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
        inventory.put("LearnerUnit", {"metadata": metadata, "spec": {"run": "r"}})
    assert [key.name for key in report_wakeups(RUN, diff, inventory)] == expected


class OneUnit:
    """A unit on an API server, and a queue that notes its passes."""

    def __init__(self) -> None:
        self.server = Server(random.Random(0))
        metadata = {"name": "u", "namespace": "ns"}
        body = {"apiVersion": "v", "kind": "LearnerUnit", "metadata": metadata, "spec": {"run": "r"}}
        self.inventory, self.memory = Inventory(), Memory(uid="u")
        self.inventory.put("LearnerUnit", self.server.create(body))
        self.passes: list[tuple[str, float]] = []
        self.queue: WorkQueue[Key] = WorkQueue(self._note)
        self.writer = StatusWriter(MemoryCluster(self.server), self.inventory, self.queue)

    async def _note(self, key: Key) -> None:
        self.passes.append((key.kind, asyncio.get_running_loop().time()))

    async def write(self, **status: Any) -> bool:
        """Whether the API server has the status now."""
        key = Key("LearnerUnit", "ns", "u")
        body = self.inventory.get(key)
        assert body is not None
        await self.writer.write(key, body, status, self.memory)
        return self.server.get("LearnerUnit", "u").get("status") == status


def test_figures_wait_for_their_turn_and_anything_else_is_written_at_once_and_wakes_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "atoll_operator.reconcilers.unit.time.monotonic", lambda: asyncio.get_running_loop().time()
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
        inventory.put(kind, thing(1, name, spec={"run": "r"}))
    times: dict[Key, list[float]] = {}

    async def note(_: object, key: Key) -> None:
        times.setdefault(key, []).append(asyncio.get_running_loop().time())

    monkeypatch.setattr(RunReconciler, "__call__", note)
    monkeypatch.setattr(UnitReconciler, "__call__", note)

    async def work() -> None:
        client = MemoryCluster(Server(random.Random(0)), metrics)
        controller = Controller(settings, client, inventory, metrics)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(controller.run(inventory.keys("TrainingRun", "LearnerUnit")), 600)

    leap(work())
    assert len(times) == 1 + UNITS
    for first, second, third, *_ in times.values():
        assert first == 0 and 240 <= second <= 300 and 240 <= third - second <= 300
    in_seconds = Counter(int(passes[1]) for passes in times.values())
    assert max(in_seconds.values()) < UNITS / 15, "a failure waits for few of them"
