"""What is known of runs, units, pods and nodes, and which key is reconciled after which change or report."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
from leaping import leap
from memory_apiserver import Server
from memory_client import MemoryCluster
from objects import TWO_HOSTS

from atoll_operator.api.group import ACCELERATOR, MACHINE_TYPE, NODE_POOL, TOPOLOGY
from atoll_operator.kube.cache import Change, Key, Object, key_of
from atoll_operator.kube.errors import Conflict, Retry
from atoll_operator.metrics.process import Metrics
from atoll_operator.operator import RECONCILERS
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.reconcilers.controller import Controller
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.run import RunReconciler
from atoll_operator.reconcilers.unit import UnitReconciler
from atoll_operator.reconcilers.wakeups import (
    CONDITIONS,
    SOON_SECONDS,
    Dispatcher,
    Wakeup,
    report_wakeups,
    wakeups,
)
from atoll_operator.settings import Settings
from atoll_runtime import contract

UNITS = 400
Woken = dict[Key, float | tuple[float, str]]
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
    """An inventory with a pod on the node `n1`, and who is woken by each event: after how long, and in which lane."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.put("Pod", 1, "first", spec={"nodeName": "n1"})

    def put(self, kind: str, version: int, name: str = "", **more: Any) -> Woken:
        return self._woken(self.inventory.put(kind, thing(kind, version, name, **more)))

    def drop(self, kind: str) -> Woken:
        body = thing(kind, 0)
        return self._woken(self.inventory.delete(key_of(kind, body), body["metadata"]["uid"]))

    def _woken(self, change: Change | None) -> Woken:
        found = () if change is None else wakeups(change, self.inventory)
        return {key: (seconds, lane) if lane else seconds for key, seconds, lane in found}


def test_pools_that_lack_hosts_are_told_by_the_nodes_that_are_there_of_the_units_machine_type() -> None:
    world = World()
    nodes = {
        "a": "ct6e-standard-4t",
        "b": "ct6e-standard-4t",
        "c": "ct6e-standard-4t",
        "d": "ct6e-standard-8t",
    }
    for number, (name, machine) in enumerate(nodes.items(), 2):
        labels = {NODE_POOL: name, ACCELERATOR: TWO_HOSTS.accelerator, TOPOLOGY: TWO_HOSTS.topology}
        metadata = {"labels": {**labels, MACHINE_TYPE: machine}}
        world.inventory.put("Node", thing("Node", number, name, metadata=metadata))
    assert world.inventory.sound_chips(TWO_HOSTS) == {"a": 0, "b": 0, "c": 0}
    any_machine = TWO_HOSTS.model_copy(update={"machine_type": None})
    assert world.inventory.sound_chips(any_machine).keys() == nodes.keys()
    world.inventory.delete(Key("Node", "", "b"), "b")
    assert world.inventory.sound_chips(TWO_HOSTS) == {"a": 0, "c": 0}


READY, UNREADY = ({"conditions": [{"type": "Ready", "status": status}]} for status in ("True", "False"))
AT_ONCE, SOON, TELLS, NOT = {UNIT: 0.0}, {UNIT: SOON_SECONDS}, {UNIT: (SOON_SECONDS, CONDITIONS)}, {}
PENDING, GIVEN = {"phase": "Pending"}, {"nodeSelector": {"cloud.google.com/gke-nodepool": "p"}}
TERMINATING = {"metadata": {"deletionTimestamp": "2026-11-23T08:00:00Z"}}
OF_RUN, OF_OTHERS = ({"metadata": {"labels": labels}} for labels in ({"atoll.dev/run": "r"}, {}))
GONE: Object = {}
CHANGES: list[tuple[str, str, list[Object], Woken]] = [
    ("Pod", "is new", [{"status": PENDING}], AT_ONCE),
    ("Pod", "nothing that matters", [{"status": PENDING}, {"status": {**PENDING, "hostIP": "10.1"}}], NOT),
    ("Pod", "runs", [{"status": PENDING}, {"status": {"phase": "Running", **UNREADY}}], TELLS),
    ("Pod", "becomes ready", [{"status": UNREADY}, {"status": READY}], TELLS),
    ("Pod", "is not ready any more", [{"status": READY}, {"status": UNREADY}], AT_ONCE),
    ("Pod", "failed", [{"status": {"phase": "Running"}}, {"status": {"phase": "Failed"}}], AT_ONCE),
    ("Pod", "bound, its pool given", [{"spec": GIVEN}, {"spec": {**GIVEN, "nodeName": "n2"}}], TELLS),
    ("Pod", "bound, its pool chosen", [{"spec": {}}, {"spec": {"nodeName": "n2"}}], AT_ONCE),
    ("Pod", "gone", [{"spec": {"nodeName": "n2"}}, GONE], AT_ONCE),
    ("Pod", "gone before it had a node", [{"spec": {}}, GONE], SOON),
    ("Pod", "gone as was told", [TERMINATING, GONE], SOON),
    ("Node", "is new", [{"spec": {}}], AT_ONCE),
    ("Node", "nothing that matters", [{"spec": {}}, {"status": {"conditions": []}}], NOT),
    ("Node", "cordoned", [{"spec": {}}, {"spec": {"unschedulable": True}}], AT_ONCE),
    ("LearnerUnit", "changes", [{"spec": {"run": "r"}}], {UNIT: 0.0, RUN: SOON_SECONDS}),
    ("LearnerUnit", "gone", [{"spec": {"run": "r"}}, GONE], {UNIT: 0.0, RUN: SOON_SECONDS}),
    ("TrainingRun", "changes", [{"spec": {}, **OF_RUN}], {RUN: 0.0}),
    ("Secret", "made by its owner", [{"data": {}}], NOT),
    ("Secret", "changed by others", [{"data": {}}, {"data": {}}], SOON),
    ("Secret", "gone", [{"data": {}}, GONE], SOON),
    ("Service", "of a run", [OF_RUN, OF_RUN], {RUN: SOON_SECONDS}),
    ("Service", "of others", [OF_OTHERS, OF_OTHERS], NOT),
]


@pytest.mark.parametrize(
    ("kind", "what", "states", "woken"), CHANGES, ids=[f"{r[0]} {r[1]}" for r in CHANGES]
)
def test_whom_a_change_wakes(kind: str, what: str, states: list[Object], woken: Woken) -> None:
    world, last = World(), {}
    for version, state in enumerate(states, 2):
        last = world.drop(kind) if state is GONE else world.put(kind, version, **state)
    assert last == woken


LINK = contract.LinkReport(period=1, load=0.5)
REPORTED = contract.UnitReport(incarnation=1, hosts=4, state="Learning", step=10, loss=2.0, link=LINK)
STATUS = contract.SyncerStatus(
    run_uid="u", phase="Running", global_step=5, units={"a": REPORTED, "b": REPORTED}
)
STATE = SyncerState().heard(STATUS, 1.0)
AWAY = ("SyncerUnavailable", "no route")
UNIT_NEWS: dict[str, Any] = {
    "incarnation": 2, "hosts": 3, "state": "Gone", "seeded_step": 4, "seed_message": "skipped one",
    "first_merge_time": 9.0, "beginning": contract.BeginningReport.model_construct(), "suspect": "8 refused",
}  # fmt: skip
RUN_NEWS: dict[str, Any] = {
    "run_uid": "v", "target_steps": 9, "restarts": 1, "shard": 1, "shards": 2, "fragments": 4,
    "final_checkpoint": "gs://b/r", "down": "shard 1: away",
}  # fmt: skip


def woken(old: SyncerState, new: SyncerState) -> dict[str, Wakeup]:
    """By this report, of the run r with the units a, b and idle; by name."""
    inventory = Inventory()
    for version, name in enumerate(("a", "b", "idle"), 1):
        inventory.put("LearnerUnit", thing("LearnerUnit", version, name, spec={"run": "r"}))
    found = list(report_wakeups(RUN, old, new, inventory))
    assert len(found) == len({wakeup.key for wakeup in found})
    return {wakeup.key.name: wakeup for wakeup in found}


def told(old: SyncerState, new: SyncerState) -> set[str]:
    """Names of what is reconciled at once."""
    return {name for name, wakeup in woken(old, new).items() if wakeup.seconds == 0}


def after(**changes: Any) -> SyncerState:
    return STATE.heard(STATUS.model_copy(update=changes), 2.0)


def unit_after(**changes: Any) -> SyncerState:
    return after(units={"a": REPORTED.model_copy(update=changes), "b": REPORTED})


def test_figures_of_a_report_wait_and_everything_else_is_acted_on_at_once() -> None:
    unit_figures = contract.UnitReport.model_fields.keys() - {*UNIT_NEWS, "link", "slow"}
    run_figures = contract.SyncerStatus.model_fields.keys() - {*RUN_NEWS, "checkpoint", "phase", "units"}
    assert not told(STATE, STATE.missed(*AWAY)), "a single poll failed"
    link = LINK.model_copy(update={"up_gbps": 1.0, "load": 0.6, "reason": "fits"})
    assert not told(STATE, unit_after(link=link, **dict.fromkeys(unit_figures, 99)))
    figures = dict.fromkeys(run_figures, 99) | {"ledger": {"a": contract.LedgerReport(trained=9)}}
    assert not told(STATE, after(**figures))
    judged = [{"codec": "int8"}, {"period": 1.2}, {"advice": "set codec int4"}, {"load": 0}]
    links = [{"link": LINK.model_copy(update=change)} for change in judged]
    assert not told(unit_after(slow="9 s, 4 × 2 s"), unit_after(slow="8 s, 4 × 2 s"))
    for news in [*({name: value} for name, value in UNIT_NEWS.items()), {"slow": "9 s, 4 × 2 s"}, *links]:
        assert told(STATE, unit_after(step=11, **news)) == {"r", "a"}, news
    assert told(unit_after(loss=None), STATE) == {"r", "a"}, "its first loss"
    assert told(STATE, after(units={"a": REPORTED, "c": REPORTED})) == {"r", "b", "c"}
    for name, value in RUN_NEWS.items():
        assert "r" in told(STATE, after(**{name: value})), name
    for news in ({"newest_step": 5, "uri": "gs://b/5"}, {"error": "403"}, {"current": True}):
        assert told(STATE, after(checkpoint=contract.CheckpointReport(**news))) == {"r"}, news


REPORTS: list[tuple[SyncerState, dict[str, tuple[str, int]]]] = [
    (after(time=9.0), {}),
    (after(rounds=6), {"r": ("TrainingRun", 10)}),
    (unit_after(step=11), {"r": ("TrainingRun", 10), "a": ("LearnerUnit", 30)}),
    (
        after(ledger={"b": contract.LedgerReport(trained=9)}),
        {"r": ("TrainingRun", 10), "b": ("LearnerUnit", 30)},
    ),
    (after(bytes_in=10**9, time=9.0), {"r": ("TrainingRun", 10)}),
    (unit_after(hosts=3), {"r": ("", 0), "a": (CONDITIONS, 0)}),
    (unit_after(suspect="8 refused"), {"r": ("", 0), "a": ("", 0)}),
]
"""Who is woken, in which lane, after how many seconds. Its heal does not wait behind the conditions of others."""


@pytest.mark.parametrize(("new", "expected"), REPORTS)
def test_figures_that_change_are_due_after_a_while_and_all_but_a_runs_news_and_a_heal_has_a_lane(
    new: SyncerState, expected: dict[str, tuple[str, int]]
) -> None:
    assert {name: (each.lane, each.seconds) for name, each in woken(STATE, new).items()} == expected


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(after(phase="Finishing"), id="another-phase"),
        pytest.param(STATE.missed(*AWAY).missed(*AWAY), id="unavailable"),
        pytest.param(after(down="shard 1: no route"), id="a-shard-is-down"),
        pytest.param(SyncerState(), id="unknown"),
    ],
)
def test_all_units_are_due_if_the_syncer_comes_goes_or_changes_its_phase(other: SyncerState) -> None:
    for found in (told(STATE, other), told(other, STATE)):
        assert found == {"r", "a", "b", "idle"}
    assert told(after(down="shard 1: no route"), after(down="shard 2: no route")) == {"r"}


def reconcile(
    inventory: Inventory, metrics: Metrics, seconds: float, knows: Callable[[str], bool] = lambda _: True
) -> None:
    """Lead for this time; `knows`: whether all of a namespace is known."""

    async def work() -> None:
        client, own = MemoryCluster(Server(random.Random(0)), metrics), Settings(runtime_image="i")
        controller = Controller(own, client, inventory, metrics, RECONCILERS, knows)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(controller.run(), seconds)

    leap(work())


def test_a_pass_that_is_put_off_is_not_counted_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, metrics = Inventory(), Metrics()
    outcomes = [Retry(5.0, "exceeded quota"), Conflict("it is newer"), *[None] * 9]
    inventory.put("TrainingRun", thing("TrainingRun", 1, "r", spec={}))
    monkeypatch.setattr(RunReconciler, "__call__", AsyncMock(side_effect=outcomes))
    reconcile(inventory, metrics, 60)
    [family] = metrics.reconcile_errors.collect()
    counts = {each.labels["error"]: each.value for each in family.samples if each.name.endswith("_total")}
    assert counts == {"Conflict": 1.0}


def test_a_key_is_left_alone_until_all_of_its_namespace_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, known, passes = Inventory(), {"n"}, list[tuple[str, float]]()
    for namespace in ("n", "m"):
        inventory.put("TrainingRun", thing("TrainingRun", 1, metadata={"namespace": namespace}, spec={}))

    async def note(run: RunReconciler, key: Key) -> None:
        passes.append((key.namespace, asyncio.get_running_loop().time()))
        if key.namespace == "n":
            await asyncio.sleep(10)
            known.add("m")
            dispatcher = Dispatcher(inventory)
            dispatcher.queue = run._queue
            dispatcher.listed(["m"])

    monkeypatch.setattr(RunReconciler, "__call__", note)
    reconcile(inventory, Metrics(), 60, known.__contains__)
    assert passes == [("n", 0.0), ("m", 10.0)]


def test_a_resync_looks_at_each_object_once_and_not_at_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, times = Inventory(), dict[Key, list[float]]()
    for kind, name in [("TrainingRun", "r"), *(("LearnerUnit", f"r-p-{n}") for n in range(UNITS))]:
        inventory.put(kind, thing(kind, 1, name, spec={"run": "r"}))

    async def note(_: object, key: Key) -> None:
        times.setdefault(key, []).append(asyncio.get_running_loop().time())

    monkeypatch.setattr(RunReconciler, "__call__", note)
    monkeypatch.setattr(UnitReconciler, "__call__", note)
    reconcile(inventory, Metrics(), 900)
    assert len(times) == 1 + UNITS
    for first, second, third, *_ in times.values():
        assert first == 0 and 240 <= second <= 300 and 240 <= third - second <= 300
    in_seconds = Counter(int(passes[1]) for passes in times.values())
    assert max(in_seconds.values()) < UNITS / 15, "a failure waits for few of them"
