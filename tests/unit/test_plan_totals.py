"""A run's totals: units come, fail and go, operators die, and nothing is lost or counted twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_operator.api.common import CostStatus
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import DepartedStatus, TrainingRunSpec, TrainingRunStatus
from atoll_operator.keys import Key
from atoll_operator.plan.conditions import urgent
from atoll_operator.plan.departure import plan_departure
from atoll_operator.plan.podspec import PodSettings
from atoll_operator.plan.run import plan_run
from atoll_operator.plan.runobjects import RunObserved, UnitFacts
from atoll_operator.plan.shards import FeedState
from atoll_operator.plan.totals import KEPT, Account, Totals, totals
from atoll_operator.store import Store
from atoll_runtime.contract import SyncerStatus

RUN = Key("TrainingRun", "n", "r")
SPEC = LearnerUnitSpec(
    run="r", pool="p", accelerator="tpu-v6e-slice", topology="2x2", batch=8, stream=0, streams=1
)
WANTED = TrainingRunSpec.model_validate(
    {
        "model": {"preset": "1m"},
        "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
        "target": {"globalSteps": 100},
        "checkpoint": {"uri": "gs://bucket/run"},
        "pools": [{"name": "p", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 1}],
    }
)


def failures(count: int) -> Account:
    """Each cost 0.1 s, which no binary number is."""
    if not count:
        return Account()
    lost = CostStatus(
        failures=count, seconds=round(0.1 * count, 2), chip_seconds=round(0.4 * count, 2), steps=count
    )
    return Account(count, lost)


@dataclass
class World:
    """What the API server holds, and one operator that may die."""

    status: TrainingRunStatus = field(default_factory=TrainingRunStatus)
    units: dict[str, int] = field(default_factory=dict)
    """Uid to failures; the first part of it is the name."""
    wanted: set[str] = field(default_factory=set)
    left: dict[str, Account] = field(default_factory=dict)
    """In the operator's memory."""
    truth: int = 0
    made: int = 0

    def create(self, name: str) -> None:
        if all(uid.split("/")[0] != name for uid in self.units):
            self.made += 1
            self.units[f"{name}/{self.made}"] = 0
            self.wanted.add(name)

    def fail(self, name: str) -> None:
        for uid in self.units:
            if uid.startswith(name) and name in self.wanted:
                self.units[uid] += 1
                self.truth += 1

    def vanish(self, uid: str, seen: bool) -> None:
        last = failures(self.units.pop(uid))
        if seen and last != Account():
            self.left[uid] = last

    def delete(self, name: str, seen: bool) -> None:
        for uid in [uid for uid in self.units if uid.startswith(name)]:
            self.vanish(uid, seen)

    def visit(self, dies: str = "") -> None:
        """One pass of the operator: it removes units, then writes the status; in between it may die."""
        facts = {
            uid.split("/")[0]: UnitFacts(
                name=uid.split("/")[0],
                run="r",
                uid=uid,
                status=LearnerUnitStatus(restart_count=count, lost=failures(count).lost),
            )
            for uid, count in self.units.items()
        }
        plan = plan_departure(self.seen(facts), facts, dict.fromkeys(self.wanted, SPEC))
        if dies != "at once":
            for unit in plan.retire:
                self.vanish(unit.uid, seen=True)
        if dies not in ("at once", "before its status"):
            self._write(plan.totals)
        if dies:
            self.left.clear()

    def seen(self, units: dict[str, UnitFacts]) -> RunObserved:
        """The run, as the operator sees it."""
        return RunObserved(
            name="r", namespace="n", uid="run", generation=1, spec=WANTED, status=self.status, left=dict(self.left),
            settings=PodSettings(run="r", image="i", pull_policy="Always", environment={}), units=units,
        )  # fmt: skip

    def _write(self, found: Totals) -> None:
        assert found.sum.restarts >= self.status.restarts, "the total fell"
        changes = {"restarts": found.sum.restarts, "lost": found.sum.lost, "departed": found.departed}
        self.status = self.status.model_copy(update=changes)
        for uid in found.departed.counted if found.departed else ():
            self.left.pop(uid, None)

    def settle(self) -> None:
        for _ in range(3):
            self.visit()


# fmt: off
ACTS = st.tuples(
    st.sampled_from(
        [
            "create", "fail", "fail", "scale down", "delete", "delete while down", "pass",
            "dies at once", "dies before its status", "dies after it",
        ]
    ),
    st.sampled_from("ab"),
)
# fmt: on


def begun() -> World:
    world = World()
    for name in "ab":
        world.create(name)
        world.fail(name)
    return world


def plain(world: World, act: str, name: str) -> None:
    """All but a deletion by hand."""
    if act == "create":
        world.create(name)
    elif act == "fail":
        world.fail(name)
    elif act == "scale down":
        world.wanted.discard(name)
    else:
        world.visit(dies=act.removeprefix("dies ") if act != "pass" else "")


@settings(deadline=None, max_examples=400)
@given(st.lists(ACTS, max_size=40))
def test_nothing_is_lost_and_nothing_is_counted_twice_whoever_dies_when(acts) -> None:
    world = begun()
    for act, name in acts:
        if act == "delete":
            world.delete(name, seen=True)
            world.visit()
        elif act == "delete while down":
            world.visit()  # all that the units say had been written when the operator went
            world.left.clear()
            world.delete(name, seen=False)
            world.visit()  # the next operator looks before another unit fails
        else:
            plain(world, act, name)
    world.settle()
    assert world.status.restarts == world.truth
    assert (world.status.lost or CostStatus()) == (failures(world.truth).lost or CostStatus())


@settings(deadline=None, max_examples=200)
@given(st.lists(ACTS, max_size=40))
def test_what_went_while_nobody_looked_is_never_counted_twice_and_no_total_falls(acts) -> None:
    world = begun()
    for act, name in acts:
        if act.startswith("delete"):
            world.left.clear()
            world.delete(name, seen=False)
        else:
            plain(world, act, name)
    world.settle()
    assert world.status.restarts <= world.truth


def test_a_unit_goes_only_after_the_status_that_names_it() -> None:
    world = World()
    for name in "ab":
        world.create(name)
    world.fail("a")
    world.wanted.clear()
    world.visit()
    assert list(world.units) == ["a/1"]  # b had nothing to leave behind
    assert world.status.departed == DepartedStatus(restarts=1, lost=failures(1).lost, counted=("a/1",))
    world.wanted.add("a")
    world.visit()
    assert not world.units, "what is counted as gone goes, also if it is wanted again"
    world.settle()
    assert world.status.restarts == 1


def test_a_total_that_no_unit_explains_is_doubted_and_kept() -> None:
    old = TrainingRunStatus(restarts=3, lost=failures(3).lost)
    found = totals(old, {"u": failures(1)}, ())
    assert found.doubtful
    assert found.sum == failures(3)
    assert found.departed == DepartedStatus(restarts=2, lost=failures(2).lost)
    assert not totals(old, {"u": failures(4)}, ()).doubtful


def test_of_units_long_gone_no_more_than_a_few_stay_named() -> None:
    uids = [f"u{number}" for number in range(50)]
    found = totals(TrainingRunStatus(restarts=50), {uid: Account(1) for uid in uids}, uids)
    status = TrainingRunStatus(restarts=50, departed=found.departed)
    assert len(found.departed.counted) == 50
    left = totals(status, {}, ())
    assert left.departed.counted == tuple(uids[-KEPT:])
    assert left.sum == Account(50)


def test_bytes_that_a_syncer_carried_stay_when_it_begins_to_count_anew() -> None:
    run, told = World().seen({}), []
    for raw in (0, 500, 800, 20, 60, 60):
        report = SyncerStatus(run_uid="run", phase="Running", bytes_in=raw, bytes_out=2 * raw)
        status = plan_run(replace(run, feed=FeedState(status=report, answering_since=0.0)), 0.0).status
        told.append((status.bytes_in, status.bytes_out))
        run = replace(run, status=status)
    assert told == [(raw, 2 * raw) for raw in (0, 500, 800, 800, 840, 840)]
    assert (run.status.earlier_bytes_in, run.status.earlier_bytes_out) == (780, 1560)


def test_a_departed_unit_is_news_that_does_not_wait() -> None:
    assert urgent({"restarts": 1}, {"restarts": 1, "departed": {"restarts": 1}})


def unit(version: int, restarts: int = 0, uid: str = "u", owner: str = "run") -> dict:
    references = [{"controller": True, "uid": owner}] if owner else []
    return {
        "metadata": {
            "name": "r-p-0", "namespace": "n", "uid": uid, "resourceVersion": str(version),
            "ownerReferences": references,
        },
        "spec": {"run": "r"},
        "status": {"restartCount": restarts},
    }  # fmt: skip


@pytest.fixture
def store() -> Store:
    one = Store()
    one.put(
        "TrainingRun", {"metadata": {"name": "r", "namespace": "n", "uid": "run", "resourceVersion": "1"}}
    )
    return one


def test_the_store_keeps_the_last_of_a_unit_that_went_until_the_runs_status_names_it(store: Store) -> None:
    store.put("LearnerUnit", unit(2, restarts=1))
    store.put("LearnerUnit", unit(4, restarts=2))
    store.drop("LearnerUnit", unit(3, restarts=1))
    assert store.left(RUN) == {"u": Account(2)}
    run = {"metadata": {"name": "r", "namespace": "n", "uid": "run", "resourceVersion": "5"}}
    store.put("TrainingRun", {**run, "status": {"departed": {"restarts": 2, "counted": ["u"]}}})
    store.drop("LearnerUnit", unit(6, restarts=2))
    assert store.left(RUN) == {}


def test_a_unit_whose_successor_is_seen_first_is_not_forgotten_and_does_not_come_back(store: Store) -> None:
    store.put("LearnerUnit", unit(2, restarts=3))
    store.put("LearnerUnit", unit(9, uid="v"))
    store.put("LearnerUnit", unit(5, restarts=4))
    store.drop("LearnerUnit", unit(8, restarts=4))
    assert store.left(RUN) == {"u": Account(3)}
    assert [body["metadata"]["uid"] for body in store.units_of(RUN)] == ["v"]


def test_a_list_that_lacks_a_unit_leaves_its_account_to_the_run(store: Store) -> None:
    store.put("LearnerUnit", unit(2, restarts=1))
    store.keep("LearnerUnit", "n", set(), 7)
    assert store.left(RUN) == {"u": Account(1)}


@pytest.mark.parametrize("owner", ["earlier", "run"], ids=["of-an-earlier-run", "of-no-failures"])
def test_what_no_run_has_to_count_is_not_kept(store: Store, owner: str) -> None:
    store.put("LearnerUnit", unit(2, restarts=int(owner == "earlier"), owner=owner))
    store.drop("LearnerUnit", unit(3, restarts=int(owner == "earlier"), owner=owner))
    assert store.left(RUN) == {}
    store.put("LearnerUnit", unit(12, restarts=1, uid="w"))
    store.drop("TrainingRun", {"metadata": {"name": "r", "namespace": "n", "uid": "run"}})
    store.drop("LearnerUnit", unit(13, restarts=1, uid="w"))
    assert store.left(RUN) == {}


def test_a_unit_of_an_earlier_run_of_the_name_adds_nothing() -> None:
    status = LearnerUnitStatus(restart_count=5)
    earlier = UnitFacts(name="r-p-0", run="r", uid="old", status=status, owned=False, ours=False)
    units = {"r-p-0": earlier}
    found = plan_departure(World().seen(units), units, {"r-p-0": SPEC})
    assert found.totals.sum == Account()
