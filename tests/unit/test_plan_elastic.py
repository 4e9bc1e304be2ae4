"""A run that changes while it trains: how many units, which streams, whose turn it is; suspension and lost quorums."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_operator.api.conditions import Condition
from atoll_operator.api.learnerunit import MAX_STREAM, Failure, LearnerUnitSpec, LearnerUnitStatus, Restart
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.kube.errors import NamespaceEnding, Refused, of_status
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import find, state, transition
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.run.objects import RunObserved, UnitFacts, members
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.run.pools import sizes
from atoll_operator.plan.run.shards import CutOrder, FeedState, cut_step
from atoll_operator.plan.run.streams import deal, streams_of, table
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_runtime.contract import SyncerStatus

NOW = 1_700_000_000.0


def make_spec(pools: dict[str, int], **changes: Any) -> TrainingRunSpec:
    body: dict[str, Any] = {
        "model": {"preset": "1m"},
        "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
        "target": {"globalSteps": 100},
        "checkpoint": {"uri": "gs://bucket/run"},
        "pools": [
            {"name": name, "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": units}
            for name, units in pools.items()
        ],
    }
    return TrainingRunSpec.model_validate(body | changes)


def make_run(spec: TrainingRunSpec, **changes: Any) -> RunObserved:
    values: dict[str, Any] = {
        "name": "r", "namespace": "ns", "uid": "u", "generation": 1, "spec": spec, "status": TrainingRunStatus(),
        "settings": PodSettings(run="r", image="i", pull_policy="Always", environment={}), "units": {},
        "feed": FeedState(status=SyncerStatus(run_uid="u", phase="Running", global_step=9), answering_since=NOW),
    }  # fmt: skip
    return RunObserved(**(values | changes))


def learning(value: bool = True) -> LearnerUnitStatus:
    condition = Condition(
        type="Learning",
        status="True" if value else "False",
        reason="Merged",
        last_transition_time=format_time(NOW),
    )
    return LearnerUnitStatus(conditions=(condition,), observed_generation=1, incarnation=1)


def carried_out(run: RunObserved, plan: RunPlan) -> RunObserved:
    """The world after the plan, all units learning."""
    units = dict(run.units)
    for gone in plan.retire:
        del units[gone.name]
    for body in plan.units:
        name = body["metadata"]["name"]
        spec = LearnerUnitSpec.model_validate(body["spec"])
        known = units.get(name)
        if known is None:
            units[name] = UnitFacts(name=name, run="r", status=learning(), spec=spec, uid=name, generation=1)
        else:
            generation = known.generation + 1
            status = known.status.model_copy(update={"observed_generation": generation})
            units[name] = replace(known, spec=spec, generation=generation, status=status)
    return replace(run, units=units, status=plan.status)


def grown(run: RunObserved, spec: TrainingRunSpec) -> RunObserved:
    run = replace(run, spec=spec)
    return carried_out(run, plan_run(run, NOW))


@pytest.mark.parametrize(
    ("pools", "total", "wanted"),
    [
        pytest.param({"a": 2, "b": 3}, None, {"a": 2, "b": 3}, id="own-numbers"),
        pytest.param({"b": 3, "a": 2}, 4, {"b": 3, "a": 1}, id="last-pool-shrinks-first"),
        pytest.param({"a": 2, "b": 3}, 0, {"a": 0, "b": 0}, id="to-zero"),
        pytest.param({"a": 2, "b": 3}, 9, {"a": 6, "b": 3}, id="first-pool-grows"),
        pytest.param({"a": 2, "b": 3}, 300, {"a": 256, "b": 44}, id="first-pool-is-full"),
    ],
)
def test_a_total_is_spread_over_the_pools(pools, total, wanted) -> None:
    assert sizes(make_spec(pools, **({} if total is None else {"units": total}))) == wanted


def test_a_run_that_grows_and_shrinks_touches_no_unit_that_stays() -> None:
    run = grown(make_run(make_spec({"a": 2, "b": 1})), make_spec({"a": 2, "b": 1}))
    before = dict(run.units)
    larger = replace(run, spec=make_spec({"a": 3, "b": 1, "c": 1}))
    plan = plan_run(larger, NOW)
    assert [body["metadata"]["name"] for body in plan.units] == ["r-a-2", "r-c-0"]
    run = carried_out(larger, plan)
    assert {name: run.units[name] for name in before} == before
    smaller = replace(run, spec=make_spec({"a": 1, "c": 1}))
    plan = plan_run(smaller, NOW)
    assert [(gone.name, gone.uid) for gone in plan.retire] == [
        (name, name) for name in ("r-a-1", "r-a-2", "r-b-0")
    ]
    assert plan.units == ()
    assert plan.status.units_wanted == 2


def test_a_unit_that_comes_back_has_the_stream_that_it_had() -> None:
    run = grown(make_run(make_spec({"a": 3})), make_spec({"a": 3}))
    first = {name: unit.spec for name, unit in run.units.items()}
    run = grown(run, make_spec({"a": 3}, units=0))
    assert run.units == {}
    assert find(run.status.conditions, "Ready").reason == "ScaledToZero"
    run = grown(grown(run, make_spec({"b": 2, "a": 1}, units=2)), make_spec({"a": 3, "b": 2}))
    assert {name: run.units[name].spec for name in first} == first
    assert {run.units[name].spec.stream for name in ("r-b-0", "r-b-1")} == {3, 4}


def test_a_crash_before_the_status_is_written_deals_no_stream_twice() -> None:
    run = make_run(make_spec({"a": 2}))
    made = carried_out(run, plan_run(run, NOW)).units
    lost = replace(run, units=made, spec=make_spec({"a": 3}))
    plan = plan_run(lost, NOW)
    assert [(body["metadata"]["name"], body["spec"]["stream"]) for body in plan.units] == [("r-a-2", 2)]
    assert plan.status.streams.base == 2


def test_a_pool_that_comes_back_as_another_slice_has_its_units_made_anew_with_their_streams() -> None:
    run = grown(make_run(make_spec({"a": 2})), make_spec({"a": 2}))
    other = make_spec({"a": 2}).pools[0].model_copy(update={"topology": "1x1"})
    changed = replace(run, spec=run.spec.model_copy(update={"pools": (other,)}))
    plan = plan_run(changed, NOW)
    assert ([gone.name for gone in plan.retire], plan.units) == (["r-a-0", "r-a-1"], ())
    after = carried_out(changed, plan)
    made = [LearnerUnitSpec.model_validate(body["spec"]) for body in plan_run(after, NOW).units]
    assert [(spec.topology, spec.stream) for spec in made] == [("1x1", 0), ("1x1", 1)]


def test_a_unit_made_by_hand_is_neither_changed_nor_removed() -> None:
    run = grown(make_run(make_spec({"a": 1})), make_spec({"a": 1}))
    own = run.units["r-a-0"]
    units = {**run.units, "extra": by_hand(own, "extra", 1)}
    plan = plan_run(replace(run, units=units, spec=make_spec({"a": 1}, image="new")), NOW)
    assert "extra" not in {body["metadata"]["name"] for body in plan.units}
    assert plan.retire == ()


def by_hand(unit: UnitFacts, name: str, stream: int, **changes: Any) -> UnitFacts:
    spec = unit.spec.model_copy(update={"stream": stream, "streams": stream + 1})
    return replace(unit, name=name, spec=spec, owned=False, by_hand=True, uid=f"uid-{name}", **changes)


def test_a_unit_made_by_hand_counts_with_the_others_and_keeps_its_stream() -> None:
    run = grown(make_run(make_spec({"a": 1})), make_spec({"a": 1}))
    units = {
        name: replace(unit, status=learning())
        for name, unit in {**run.units, "extra": by_hand(run.units["r-a-0"], "extra", 1)}.items()
    }
    run = replace(run, units=units, spec=make_spec({"a": 2}, quorum={"min": 2}))
    plan = plan_run(run, NOW)
    assert (plan.status.units_ready, plan.status.units_wanted) == (2, 3)
    assert find(plan.status.conditions, "Ready").status == "True"
    assert [(body["metadata"]["name"], body["spec"]["stream"]) for body in plan.units] == [("r-a-1", 2)]
    assert members(run) == {"r-a-0": "", "extra": "uid-extra"}


def test_a_unit_made_by_hand_lets_another_one_have_its_turn_and_one_that_does_not_learn_holds_it_up() -> None:
    run = grown(make_run(make_spec({"a": 1})), make_spec({"a": 1}))
    own = replace(run.units["r-a-0"], status=learning())
    run = replace(run, spec=make_spec({"a": 1}, image="new"))
    for learns, changed in ((True, ["r-a-0"]), (False, [])):
        extra = by_hand(own, "extra", 1)
        extra = replace(extra, status=learning(learns))
        plan = plan_run(replace(run, units={"r-a-0": own, "extra": extra}), NOW)
        assert [body["metadata"]["name"] for body in plan.units] == changed


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), max_size=4), min_size=1, max_size=12)
)
def test_no_two_units_ever_have_one_stream_and_divisions_fit_together(history) -> None:
    status, ever = None, {}
    for pools in history:
        slots = [(pool, index) for pool, units in sorted(pools.items()) for index in range(units)]
        status = deal(status, {}, slots)
        dealt = table(status)
        assert len(set(dealt.values())) == len(dealt)
        assert set(slots) <= dealt.keys()
        assert ever.items() <= dealt.items()
        ever = dealt
        for slot in slots:
            division = streams_of(dealt[slot], status.base)
            assert dealt[slot] < division
            assert division % status.base == 0
            assert (division // status.base).bit_count() == 1


def test_streams_of_pools_that_are_gone_are_used_again_when_there_are_no_others() -> None:
    status = deal(None, {}, [("a", 0)])
    for number in range(40):
        status = deal(status, {}, [("a", 0), *((f"p{number}", index) for index in range(256))])
        assert max(table(status).values()) <= MAX_STREAM
        assert table(status)["a", 0] == 0


def test_a_new_image_goes_from_unit_to_unit_and_waits_until_each_learns() -> None:
    run = grown(make_run(make_spec({"a": 3})), make_spec({"a": 3}))
    run = replace(run, spec=make_spec({"a": 3}, image="new", quorum={"min": 2}))
    for turn in range(3):
        plan = plan_run(run, NOW)
        [body] = plan.units
        assert (body["metadata"]["name"], body["spec"]["image"]) == (f"r-a-{turn}", "new")
        assert plan.status.units_updated == turn
        run = carried_out(run, plan)
        name = f"r-a-{turn}"
        away = replace(run.units[name], status=learning(False).model_copy(update={"observed_generation": 2}))
        waiting = plan_run(replace(run, units={**run.units, name: away}), NOW)
        assert waiting.units == ()
    assert plan_run(run, NOW).units == ()
    assert plan_run(run, NOW).status.units_updated == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"spec": {"quorum": {"min": 3}}}, "quorum.min 3 of 3 units spares none", id="no-unit-to-spare"
        ),
        pytest.param({"unseen": "r-a-1"}, "2 of 3 do", id="a-change-that-was-not-seen-yet"),
        pytest.param({"feed": FeedState(reason="SyncerUnavailable")}, "waits for the syncer", id="no-syncer"),
    ],
)
def test_a_unit_that_learns_is_not_taken_away_from_the_quorum(changes, told) -> None:
    run = grown(make_run(make_spec({"a": 3})), make_spec({"a": 3}))
    run = replace(run, spec=make_spec({"a": 3}, image="new", **changes.get("spec", {})))
    if unseen := changes.get("unseen"):
        spec = run.units[unseen].spec.model_copy(update={"image": "new"})
        run = replace(run, units={**run.units, unseen: replace(run.units[unseen], spec=spec, generation=2)})
    plan = plan_run(replace(run, feed=changes.get("feed", run.feed)), NOW)
    assert plan.units == ()
    assert told in find(plan.status.conditions, "Progressing").message


def test_units_that_a_syncer_has_lost_for_a_moment_are_not_all_changed_at_once() -> None:
    """A new image restarts the syncer too, and until units are connected again none of them learns."""
    run = grown(make_run(make_spec({"a": 4})), make_spec({"a": 4}))
    lost = learning(False).model_copy(update={"phase": "Joining", "merged_incarnation": 1})
    spec = make_spec({"a": 4}, image="new", quorum={"min": 3})
    away = replace(
        run, spec=spec, units={name: replace(unit, status=lost) for name, unit in run.units.items()}
    )
    plan = plan_run(away, NOW)
    assert plan.units == ()
    assert "0 of 4 do" in find(plan.status.conditions, "Progressing").message
    back = {**run.units, "r-a-2": away.units["r-a-2"]}
    [body] = plan_run(replace(away, units=back), NOW).units
    assert body["metadata"]["name"] == "r-a-2", "the one that is lost first, for it costs least"
    anew = lost.model_copy(update={"incarnation": 2})
    idle = {**away.units, "r-a-1": replace(away.units["r-a-1"], status=anew)}
    [body] = plan_run(replace(away, units=idle), NOW).units
    assert body["metadata"]["name"] == "r-a-1", "nothing of this incarnation is merged yet"
    assert plan_run(away, NOW + 599).units == ()
    assert len(plan_run(away, NOW + 600).units) == 4, (
        "an image with which units lose the syncer can be mended"
    )
    silent = replace(away, feed=replace(run.feed, answering_since=None))
    assert plan_run(silent, NOW + 10**6).units == ()
    back = replace(away, feed=replace(run.feed, answering_since=NOW + 10**6))
    assert plan_run(back, NOW + 10**6 + 599).units == (), "while the syncer was away nobody knew"
    merged = learning().model_copy(update={"phase": "Learning", "merged_incarnation": 1})
    unseen = {name: replace(unit, status=merged, generation=2) for name, unit in run.units.items()}
    assert plan_run(replace(away, units=unseen), NOW + 10**6).units == (), "the last change is not seen yet"


def test_a_unit_that_finds_no_hosts_holds_up_a_rollout_for_ten_minutes_and_one_that_failed_for_good() -> None:
    run = grown(make_run(make_spec({"a": 3})), make_spec({"a": 3}))
    run = replace(run, spec=make_spec({"a": 3}, image="new", quorum={"min": 1}))
    run = carried_out(run, plan_run(run, NOW))

    def after(seconds: float, status: LearnerUnitStatus) -> list[str]:
        first = replace(run.units["r-a-0"], status=status)
        plan = plan_run(replace(run, units={**run.units, "r-a-0": first}), NOW + seconds)
        return [body["metadata"]["name"] for body in plan.units]

    states = {
        "Scheduled": state(False, "CapacityUnavailable"),
        "Learning": state(False, "CapacityUnavailable"),
    }
    waits = LearnerUnitStatus(
        phase="Scheduling", incarnation=2, observed_generation=2, conditions=transition((), states, 2, NOW)
    )
    assert after(599, waits) == []
    assert after(600, waits) == ["r-a-1"]
    elsewhere = make_spec({"a": 3}, image="new", quorum={"min": 1}, queueName="typo")
    placed = run.units["r-a-0"].spec.model_copy(update={"queue_name": "typo"})
    first = replace(run.units["r-a-0"], status=waits, spec=placed)
    lost = replace(run, spec=elsewhere, units={**run.units, "r-a-0": first})
    assert plan_run(lost, NOW + 10**6).units == (), "what is rolled may be why there are no hosts"
    assert after(10**6, out_of_restarts(0)) == []


def test_units_from_before_a_section_existed_are_as_good_as_those_that_say_nothing_in_it() -> None:
    run = grown(make_run(make_spec({"a": 3})), make_spec({"a": 3}))
    olden = {
        name: replace(unit, spec=unit.spec.model_copy(update={"pod_template": None}))
        for name, unit in run.units.items()
    }
    plan = plan_run(replace(run, units=olden), NOW)
    assert (plan.units, plan.status.units_updated) == ((), 3)
    labelled = make_spec({"a": 3}, podTemplate={"labels": {"team": "a"}})
    plan = plan_run(replace(run, units=olden, spec=labelled), NOW)
    assert ([body["metadata"]["name"] for body in plan.units], plan.status.units_updated) == (["r-a-0"], 0)


def test_units_that_do_not_learn_are_changed_at_once_so_that_a_bad_image_can_be_mended() -> None:
    run = grown(make_run(make_spec({"a": 3}, image="bad")), make_spec({"a": 3}, image="bad"))
    broken = replace(run.units["r-a-0"], status=learning(False))
    run = replace(run, units={**run.units, "r-a-0": broken}, spec=make_spec({"a": 3}, image="good"))
    assert [body["metadata"]["name"] for body in plan_run(run, NOW).units] == ["r-a-0"]


def out_of_restarts(seconds: float) -> LearnerUnitStatus:
    failure = Failure(reason="AppError", message="exit 1", time=format_time(NOW + seconds))
    return LearnerUnitStatus(phase="Failed", last_failure=failure, observed_generation=1, incarnation=9)


def broken(recovery: dict[str, Any], failures: dict[str, float]) -> RunObserved:
    """A run of three units and K = 2, some of which are out of restarts."""
    spec = make_spec({"a": 3}, quorum={"min": 2}, recovery=recovery)
    run = grown(make_run(spec), spec)
    units = {
        name: replace(unit, status=out_of_restarts(failures[name])) if name in failures else unit
        for name, unit in run.units.items()
    }
    return replace(run, units=units)


def test_a_run_below_its_quorum_says_so_and_waits_by_default() -> None:
    one = plan_run(broken({}, {"r-a-0": 0}), NOW + 9)
    assert find(one.status.conditions, "Ready").status == "True"
    ready = find(plan_run(broken({}, {"r-a-0": 0, "r-a-1": 5}), NOW + 10**6).status.conditions, "Ready")
    assert (ready.status, ready.reason) == ("False", "QuorumLost")
    assert "2 of 3 units are out of restarts, 1 are left, quorum.min is 2; the run waits" in ready.message


def test_a_run_below_its_quorum_fails_after_its_time_when_the_spec_says_so() -> None:
    policy = {"belowQuorum": "Fail", "belowQuorumSeconds": 60}
    assert plan_run(broken(policy, {"r-a-0": 0}), NOW + 10**6).status.phase == "Running"
    run = broken(policy, {"r-a-0": -(10**6), "r-a-2": -(10**6)})
    seen = plan_run(run, NOW + 5)
    assert (seen.status.phase, seen.wake) == ("Running", NOW + 65), "it may have lost its quorum only now"
    run = replace(run, status=seen.status)
    assert plan_run(run, NOW + 64).wake == NOW + 65
    assert plan_run(run, NOW + 64).status.phase == "Running"
    suspended = replace(run, spec=run.spec.model_copy(update={"suspend": True}))
    assert plan_run(suspended, NOW + 65).status.phase == "Suspending"
    assert (plan_run(suspended, NOW + 65).wake or 0) > NOW + 65
    resumed = replace(run, status=plan_run(suspended, NOW + 65).status)
    assert plan_run(resumed, NOW + 3600).status.phase == "Running"
    failed = plan_run(run, NOW + 65).status
    assert (failed.phase, find(failed.conditions, "Failed").reason) == ("Failed", "QuorumLost")


def suspending(**report: Any) -> RunObserved:
    """A run of one unit at step 42 that is to be suspended."""
    run = grown(make_run(make_spec({"a": 1})), make_spec({"a": 1}))
    status = SyncerStatus(run_uid="u", phase="Running", global_step=42, **report)
    return replace(
        run,
        spec=make_spec({"a": 1}, suspend=True),
        feed=FeedState(status=status, answering_since=NOW),
        status=run.status.model_copy(update={"global_step": 42}),
    )


def without_pods(run: RunObserved) -> RunObserved:
    gone = replace(run.units["r-a-0"], status=LearnerUnitStatus(phase="Suspended", observed_generation=1))
    return replace(run, units={"r-a-0": gone})


def replicas(plan: RunPlan) -> int:
    return int(next(body for body in plan.apply if body["kind"] == "StatefulSet")["spec"]["replicas"])


def test_nothing_is_saved_while_a_unit_may_still_contribute() -> None:
    plan = plan_run(suspending(), NOW)
    assert (plan.cut, plan.poll, replicas(plan)) == (False, True, 1)
    assert "r-a-0" in find(plan.status.conditions, "Suspended").message
    assert plan_run(without_pods(suspending()), NOW).cut
    foreign = UnitFacts(name="r-b-0", run="another", status=LearnerUnitStatus(phase="Learning"))
    beside = without_pods(suspending())
    assert plan_run(replace(beside, units={**beside.units, "r-b-0": foreign}), NOW).cut


def test_the_syncer_goes_when_the_status_says_that_a_checkpoint_holds_all_that_was_merged() -> None:
    older = without_pods(suspending(checkpoint={"newestStep": 42, "uri": "gs://b", "current": False}))
    assert replicas(plan_run(replace(older, cut=CutOrder(42)), NOW)) == 1
    saved = without_pods(suspending(checkpoint={"newestStep": 42, "uri": "gs://b", "current": True}))
    plan = plan_run(replace(saved, cut=CutOrder(42)), NOW)
    assert (replicas(plan), plan.status.phase, plan.poll, plan.again) == (1, "Suspended", True, True)
    assert plan.status.checkpoint.step == plan.status.global_step == 42
    again = plan_run(replace(saved, status=plan.status, feed=FeedState(), cut=None), NOW + 9)
    assert (replicas(again), again.status, again.poll, again.again) == (0, plan.status, False, False)


@pytest.mark.parametrize(
    ("change", "later", "told"),
    [
        pytest.param(
            {"cut": CutOrder(42, "it answers 405 to the order")}, 0, "it answers 405", id="older-syncer"
        ),
        pytest.param(
            {"feed": FeedState(reason="SyncerUnavailable", message="no route")},
            180,
            "no route",
            id="no-syncer",
        ),
    ],
)
def test_a_syncer_that_cannot_save_does_not_hold_the_suspension_up_for_ever(change, later, told) -> None:
    run = replace(without_pods(suspending()), **change)
    first = plan_run(run, NOW)
    plan = plan_run(replace(run, status=first.status), NOW + later)
    assert (replicas(plan), plan.status.phase) == (0, "Suspended")
    suspended = find(plan.status.conditions, "Suspended")
    assert told in suspended.message
    assert suspended.reason == "NotSaved", "no other number of shards may begin from the last checkpoint"
    later_on = plan_run(replace(run, status=plan.status, feed=FeedState()), NOW + later + 9)
    assert find(later_on.status.conditions, "Suspended") == suspended


def test_a_run_that_never_began_is_suspended_at_once() -> None:
    plan = plan_run(make_run(make_spec({"a": 1}, suspend=True), feed=FeedState()), NOW)
    assert (replicas(plan), plan.status.phase, plan.cut) == (0, "Suspended", False)


def shard(step: int, newest: int | None = None, current: bool = False, orderable: int = 0) -> FeedState:
    checkpoint = {"newestStep": newest, "uri": "gs://b", "current": current, "orderable": orderable}
    return FeedState(
        status=SyncerStatus(run_uid="u", phase="Running", global_step=step, checkpoint=checkpoint),
        answering_since=NOW,
    )


@pytest.mark.parametrize(
    ("shards", "old", "wanted"),
    [
        pytest.param([shard(42, 40)], None, 42, id="the-step-that-is-reached"),
        pytest.param([shard(41), shard(42)], None, 42, id="of-the-shard-that-is-ahead"),
        pytest.param([shard(42, 42)], None, 43, id="a-cut-of-this-step-lacks-something"),
        pytest.param([shard(42, 42, current=True)], None, 42, id="it-stands-already"),
        pytest.param([shard(42, 42, current=True), shard(42)], CutOrder(42), 43, id="a-part-lacks-something"),
        pytest.param([shard(42, 40)], CutOrder(43), 43, id="it-is-under-way"),
        pytest.param([shard(44, 40)], CutOrder(43), 44, id="something-was-merged-since"),
        pytest.param(
            [shard(42, 40, orderable=45), shard(42)], None, 45, id="a-shard-has-recorded-a-later-one"
        ),
        pytest.param([shard(42, 40, orderable=46)], CutOrder(45), 46, id="it-cannot-record-that-one-again"),
        pytest.param([shard(42), FeedState()], None, None, id="a-shard-is-silent"),
    ],
)
def test_the_cut_before_a_suspension_is_of_a_step_that_holds_everything(shards, old, wanted) -> None:
    assert cut_step(shards, old) == wanted


def observed(generation: int, **changes: Any) -> UnitObserved:
    """A unit whose first incarnation learns, and whose spec is of this generation."""
    spec = LearnerUnitSpec(
        run="r",
        pool="a",
        accelerator="tpu-v6e-slice",
        topology="2x2",
        batch=8,
        stream=0,
        streams=1,
        image="new",
    )
    orders = Orders(
        stop="",
        finishing=False,
        recovery=make_spec({"a": 1}).recovery,
        settings=PodSettings(run="r", image="default", pull_policy="Always", environment={}),
    )
    status = learning().model_copy(update={"gang": 1, "placed_gang": 1, "phase": "Learning", **changes})
    return UnitObserved(
        name="r-a-0",
        namespace="ns",
        uid="u",
        generation=generation,
        spec=spec,
        status=status,
        pods=(),
        orders=orders,
    )


@pytest.mark.parametrize("phase", ["Learning", "Failed"])
def test_a_unit_whose_spec_changed_goes_to_its_next_incarnation_at_no_cost_to_its_budget(phase) -> None:
    spent = (Restart(time=format_time(NOW), reason="AppError"),)
    plan = plan_unit(observed(2, phase=phase, restarts=spent), NOW)
    assert plan.advance
    assert (plan.status.incarnation, plan.status.restart_count, plan.status.observed_generation) == (2, 0, 2)
    assert "SpecChanged" in plan.status.message
    assert len(plan.status.restarts) == (0 if phase == "Failed" else 1), (
        "a unit that was given up begins anew"
    )
    made = plan_unit(replace(observed(2), status=plan.status), NOW)
    assert [pod["spec"]["containers"][0]["image"] for pod in made.create] == ["new"]
    assert not plan_unit(replace(observed(2), status=plan.status), NOW).advance


def test_a_namespace_that_is_being_deleted_is_an_error_of_its_own() -> None:
    text = "unable to create new content in namespace ns because it is being terminated"
    assert isinstance(of_status(403, "Forbidden", text, "NamespaceTerminating"), NamespaceEnding)
    assert isinstance(of_status(403, "Forbidden", "no rights"), Refused)


async def test_a_key_of_a_namespace_that_is_being_deleted_does_not_come_back() -> None:
    seen: list[str] = []

    async def handle(key: str) -> None:
        seen.append(key)
        raise NamespaceEnding(403, "Forbidden", "it is being terminated")

    queue: WorkQueue[str] = WorkQueue(handle, workers=1)
    failures: list[str] = []
    queue.on_error = lambda key, error: failures.append(key)
    work = asyncio.create_task(queue.run())
    queue.add("r")
    while not seen:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (queue.depth, queue._timers, seen, failures) == (0, {}, ["r"], [])
    work.cancel()
