"""A run's totals: units come, fail and go, operators die, and nothing is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_operator.api.common import MAX_REASONS, Cost, CostStatus
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import DepartedStatus, TrainingRunSpec, TrainingRunStatus
from atoll_operator.kube.keys import Key
from atoll_operator.plan import cost
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import urgent
from atoll_operator.plan.ledger import OTHER
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.run.departure import plan_departure
from atoll_operator.plan.run.objects import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import plan_run
from atoll_operator.plan.run.shards import FeedState
from atoll_operator.plan.run.totals import KEPT, Account, Totals, closed, totals
from atoll_operator.plan.unit import heal
from atoll_operator.plan.unit.heal import OpenHeal
from atoll_operator.reconcilers.store import Store
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


NOW = 1_700_000_000.0
SECONDS, CHIPS = 0.1, 4
"""Of each heal: no binary number."""
ONE = cost.of_heal(SECONDS, CHIPS, SECONDS)
REASONS = [f"Early{number}" for number in range(MAX_REASONS - 2)]
"""One fewer than have names of their own."""


def failures(*reasons: str) -> Account:
    lost: CostStatus | None = None
    for reason in reasons:
        lost = cost.with_heal(lost, reason, ONE)
    return Account(len(reasons), lost)


EARLIER = failures(*REASONS[::2]), failures(*REASONS[1::2])


def grown(lost: CostStatus | None) -> dict[str, dict[str, float]]:
    """All figures of a cost, in all and by reason."""
    if lost is None:
        return {}
    parts = {"": lost, **lost.by_reason}
    return {name: part.model_dump(include=set(Cost.model_fields)) for name, part in parts.items()}


@dataclass
class World:
    """What the API server holds, and one operator that may die."""

    status: TrainingRunStatus = field(default_factory=TrainingRunStatus)
    units: dict[str, Account] = field(default_factory=dict)
    """By uid; the first part of it is the name."""
    wanted: set[str] = field(default_factory=set)
    left: dict[str, Account] = field(default_factory=dict)
    """In the operator's memory."""
    restarts: int = 0
    healed: Counter[str] = field(default_factory=Counter)
    """The truth: by reason the heals that ended, by a merge or with the unit."""
    made: int = 0

    def create(self, name: str) -> None:
        if all(uid.split("/")[0] != name for uid in self.units):
            self.made += 1
            self.units[f"{name}/{self.made}"] = Account()
            self.wanted.add(name)

    def change(self, name: str, change: Callable[[Account], Account]) -> None:
        for uid, old in self.units.items():
            if uid.startswith(name) and name in self.wanted:
                self.units[uid] = change(old)

    def fail(self, name: str, reason: str) -> None:
        """It heals, or goes on to."""

        def failed(old: Account) -> Account:
            self.restarts += 1
            begun = old.healing or OpenHeal(reason, NOW - SECONDS, CHIPS, SECONDS)
            return replace(old, restarts=old.restarts + 1, healing=begun)

        self.change(name, failed)

    def merge(self, name: str) -> None:
        self.change(name, self.close)

    def close(self, old: Account) -> Account:
        if old.healing is not None:
            self.healed[old.healing.reason] += 1
        return closed(old, NOW)

    def scale_down(self, name: str) -> None:
        """What heals is given up with its unit."""
        self.change(name, lambda old: (self.close(old), old)[1])
        self.wanted.discard(name)

    def vanish(self, uid: str, seen: bool) -> None:
        last = self.units.pop(uid)
        if seen and last != Account():
            self.left[uid] = last

    def delete(self, name: str, seen: bool) -> None:
        if seen:
            self.change(name, lambda old: (self.close(old), old)[1])
        for uid in [uid for uid in self.units if uid.startswith(name)]:
            self.vanish(uid, seen)

    def visit(self, dies: str = "") -> None:
        """One pass of the operator: it removes units, then writes the status; in between it may die."""
        facts = {
            uid.split("/")[0]: UnitFacts(
                name=uid.split("/")[0],
                run="r",
                uid=uid,
                status=status_of(each),
            )
            for uid, each in self.units.items()
        }
        plan = plan_departure(self.seen(facts), facts, dict.fromkeys(self.wanted, SPEC), NOW)
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
        old, new = grown(self.status.lost), grown(found.sum.lost)
        assert all(
            new.get(part, {}).get(name, 0) >= value for part in old for name, value in old[part].items()
        ), "a part fell"
        assert len(new) <= MAX_REASONS + 1
        changes = {"restarts": found.sum.restarts, "lost": found.sum.lost, "departed": found.departed}
        self.status = self.status.model_copy(update=changes)
        for uid in found.departed.counted if found.departed else ():
            self.left.pop(uid, None)

    def settle(self) -> None:
        for _ in range(3):
            self.visit()


def status_of(unit: Account) -> LearnerUnitStatus:
    status = LearnerUnitStatus(restart_count=unit.restarts, lost=unit.lost, chips=CHIPS, step_seconds=SECONDS)
    return heal.begun(status, unit.healing.reason, unit.healing.started) if unit.healing else status


# fmt: off
ACTS = st.tuples(
    st.sampled_from(
        [
            "create", "fail", "fail and heal", "fail and heal", "merge", "scale down", "delete",
            "delete while down", "pass",
            "dies at once", "dies before its status", "dies after it",
        ]
    ),
    st.sampled_from("ab"),
    st.sampled_from([REASONS[0], "Late0", "Late1", "Late2"]),
)
# fmt: on


def begun() -> World:
    world = World()
    for name in "ab":
        world.create(name)
    world.units = {"a/1": EARLIER[0], "b/2": EARLIER[1]}
    world.restarts, world.healed = len(REASONS), Counter(REASONS)
    return world


def plain(world: World, act: str, name: str, reason: str) -> None:
    """All but a deletion by hand."""
    if act == "create":
        world.create(name)
    elif act == "fail":
        world.fail(name, reason)
    elif act == "fail and heal":
        world.fail(name, reason)
        world.merge(name)
    elif act == "merge":
        world.merge(name)
    elif act == "scale down":
        world.scale_down(name)
    else:
        world.visit(dies=act.removeprefix("dies ") if act != "pass" else "")


@settings(max_examples=400)
@given(st.lists(ACTS, max_size=40))
def test_nothing_is_lost_and_nothing_is_counted_twice_whoever_dies_when(acts) -> None:
    world = begun()
    for act, name, reason in acts:
        if act == "delete":
            world.delete(name, seen=True)
            world.visit()
        elif act == "delete while down":
            world.visit()  # all that the units say had been written when the operator went
            world.left.clear()
            world.delete(name, seen=False)
            world.visit()  # the next operator looks before another unit fails
        else:
            plain(world, act, name, reason)
    for name in "ab":
        world.merge(name)
    world.settle()
    assert world.status.restarts == world.restarts
    whole = failures(*world.healed.elements()).lost
    assert grown(world.status.lost)[""] == grown(whole)[""]
    named = {name: part.failures for name, part in world.status.lost.by_reason.items() if name != OTHER}
    assert all(count <= world.healed[name] for name, count in named.items())
    if len(world.healed) < MAX_REASONS:
        assert named == world.healed


@settings(max_examples=200)
@given(st.lists(ACTS, max_size=40))
def test_what_went_while_nobody_looked_is_never_counted_twice_and_no_total_falls(acts) -> None:
    world = begun()
    for act, name, reason in acts:
        if act.startswith("delete"):
            world.left.clear()
            world.delete(name, seen=False)
        else:
            plain(world, act, name, reason)
    world.settle()
    assert world.status.restarts <= world.restarts
    assert (world.status.lost or CostStatus()).failures <= world.healed.total()


def test_a_unit_goes_only_after_the_status_that_names_it() -> None:
    world = World()
    for name in "ab":
        world.create(name)
    world.fail("a", "Hang")
    world.scale_down("a")
    world.scale_down("b")
    world.visit()
    assert list(world.units) == ["a/1"]  # b had nothing to leave behind
    assert world.status.departed == DepartedStatus(restarts=1, lost=failures("Hang").lost, counted=("a/1",))
    world.wanted.add("a")
    world.visit()
    assert not world.units, "what is counted as gone goes, also if it is wanted again"
    world.settle()
    assert world.status.restarts == 1


def test_a_total_that_no_unit_explains_is_doubted_and_kept() -> None:
    old = TrainingRunStatus(restarts=3, lost=failures("Hang", "Hang", "NodeLost").lost)
    found = totals(old, {"u": failures("Hang")}, ())
    assert found.doubtful
    assert found.sum == failures("Hang", "Hang", "NodeLost")
    assert found.departed == DepartedStatus(restarts=2, lost=failures("Hang", "NodeLost").lost)
    assert not totals(old, {"u": failures("Hang", "NodeLost", "Hang", "Evicted")}, ()).doubtful


def test_a_reason_keeps_its_name_and_one_that_found_none_free_never_gets_one() -> None:
    world = begun()
    for reason in ("Late1", "Late0", "Late0"):
        world.fail("b", reason)
        world.merge("b")
        world.visit()
    world.scale_down("b")
    world.settle()
    parts = world.status.lost.by_reason
    assert (parts["Late1"].failures, parts[OTHER].failures, "Late0" in parts) == (1, 2, False)


def test_what_was_counted_before_there_were_reasons_stays_in_the_total() -> None:
    lost = CostStatus(failures=2, seconds=20.0, chip_seconds=80.0, steps=4)
    old = TrainingRunStatus(restarts=2, lost=lost)
    found = totals(old, {"u": Account(2, lost)}, ())
    assert not found.doubtful
    assert grown(found.sum.lost) == {"": grown(lost)[""], OTHER: grown(lost)[""]}
    more = totals(old, {"u": Account(3, cost.with_heal(lost, "Hang", ONE))}, ())
    assert {name: part.failures for name, part in more.sum.lost.by_reason.items()} == {"Hang": 1, OTHER: 2}


def test_a_unit_that_is_deleted_while_it_heals_is_charged_until_it_is_counted() -> None:
    left = {"u": Account(1, None, OpenHeal("NodeLost", NOW - 30.0, 8, 0.5))}
    run = replace(World().seen({}), left=left)
    lost = plan_departure(run, {}, {}, NOW).totals.sum.lost
    expected = Cost(failures=1, seconds=30.0, chip_seconds=240.0, steps=60)
    assert lost == CostStatus(**expected.model_dump(), by_reason={"NodeLost": expected})


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


def test_the_store_keeps_the_heal_that_a_deleted_unit_was_in(store: Store) -> None:
    body = unit(2, restarts=1)
    body["status"] |= {
        "healStartTime": format_time(NOW),
        "healReason": "Hang",
        "chips": 4,
        "stepSeconds": 0.5,
    }
    store.put("LearnerUnit", body)
    store.drop("LearnerUnit", body)
    assert store.left(RUN) == {"u": Account(1, None, OpenHeal("Hang", NOW, 4, 0.5))}


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
    found = plan_departure(World().seen(units), units, {"r-p-0": SPEC}, NOW)
    assert found.totals.sum == Account()
