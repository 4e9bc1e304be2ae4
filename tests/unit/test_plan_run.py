"""The plan of a run: objects, outcome, status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.conditions import RUN_CONDITIONS, Condition
from atoll_operator.api.learnerunit import Heal, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import document, find
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.objects import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.run.shards import CutOrder, FeedState
from atoll_operator.plan.run.status import with_problem
from atoll_runtime.contract import LedgerReport, SyncerStatus, parse_run

NOW = 1_700_000_000.0
TERMINAL = PodView(name="r-syncer-1", exit_code=64, exit_message="LayoutMismatch: no")
BEGINS = SyncerStatus(run_uid="u", phase="Running")
SPEC: dict[str, Any] = {
    "model": {"preset": "1m"},
    "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
    "target": {"globalSteps": 100},
    "checkpoint": {"uri": "gs://bucket/run"},
    "quorum": {"min": 2},
    "pools": [
        {"name": "b", "accelerator": "tpu-v5p-slice", "topology": "2x2x1", "units": 2, "capacity": "Spot"},
        {"name": "a", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 1, "batch": 4},
    ],
}


def facts(name: str, learning: bool = True, run: str = "r", **changes: Any) -> UnitFacts:
    condition = Condition(
        type="Learning",
        status="True" if learning else "False",
        reason="Merged",
        last_transition_time=format_time(NOW),
    )
    status = LearnerUnitStatus(phase="Learning" if learning else "Joining", conditions=(condition,))
    return UnitFacts(name=name, run=run, status=status.model_copy(update=changes))


def make_run(**changes: Any) -> RunObserved:
    spec = TrainingRunSpec.model_validate(SPEC | changes.pop("spec", {}))
    values: dict[str, Any] = {
        "name": "r", "namespace": "ns", "uid": "u", "generation": 3, "spec": spec, "status": TrainingRunStatus(),
        "settings": PodSettings(run="r", image="i", pull_policy="Always", environment={}),
        "units": {name: facts(name) for name in ("r-a-0", "r-b-0", "r-b-1")},
        "syncer_pods": (PodView(name="r-syncer-0"),),
    }  # fmt: skip
    return RunObserved(**(values | changes))


def feed(phase: str = "Running", **changes: Any) -> FeedState:
    status = SyncerStatus(run_uid="u", phase=phase, global_step=25, **changes)
    return FeedState(status=status, answering_since=NOW)


def condition(run: RunObserved, name: str) -> tuple[str, str]:
    found = find(plan_run(run, NOW).status.conditions, name)
    return found.status, found.reason


def test_units_have_names_streams_batches_and_capacity_of_their_pools() -> None:
    plan = plan_run(make_run(units={}), NOW)
    specs = {body["metadata"]["name"]: body["spec"] for body in plan.units}
    assert {name: spec["stream"] for name, spec in specs.items()} == {"r-a-0": 0, "r-b-0": 1, "r-b-1": 2}
    assert [specs[name]["batch"] for name in ("r-a-0", "r-b-0")] == [4, 8]
    assert specs["r-b-0"]["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert specs["r-b-0"]["tolerations"][0]["key"] == "cloud.google.com/gke-spot"


def test_streams_do_not_move_when_pools_are_listed_in_another_order() -> None:
    turned = make_run(units={}, spec={"pools": list(reversed(SPEC["pools"]))})
    assert plan_run(turned, NOW).units == plan_run(make_run(units={}), NOW).units


def test_the_configuration_is_the_contract_of_the_runtime() -> None:
    config = next(body for body in plan_run(make_run(), NOW).apply if body["kind"] == "ConfigMap")
    contract = parse_run(config["data"]["run.json"])
    assert (contract.uid, contract.quorum.min) == ("u", 2)
    assert [shard.host for shard in contract.shards] == ["r-syncer-0.r-syncer.ns.svc"]
    assert (contract.seed, contract.tape) == ("Checkpoint", "Decisions")


def test_all_conditions_are_there_from_the_first_visit() -> None:
    status = plan_run(make_run(units={}), NOW).status
    assert tuple(item.type for item in status.conditions) == RUN_CONDITIONS
    assert all(item.reason for item in status.conditions)
    assert status.start_time == format_time(NOW)


@pytest.mark.parametrize(
    ("changes", "name", "wanted"),
    [
        pytest.param({"feed": feed()}, "Ready", ("True", "QuorumLearning"), id="quorum"),
        pytest.param(
            {"feed": feed(), "units": {"r-a-0": facts("r-a-0")}}, "Ready", ("False", "QuorumNotMet"), id="too-few"
        ),
        pytest.param({}, "Ready", ("False", "SyncerStarting"), id="no-answer-yet"),
        pytest.param({"feed": feed("Starting", message="bucket")}, "Ready", ("False", "SyncerStarting"), id="starting"),
        pytest.param(
            {"feed": FeedState(reason="SyncerCertificateInvalid", message="m")}, "Degraded",
            ("True", "SyncerCertificateInvalid"), id="certificate",
        ),
        pytest.param(
            {"feed": feed(checkpoint={"error": "no"})}, "Degraded", ("True", "CheckpointFailed"), id="checkpoint"
        ),
        pytest.param(
            {"feed": feed(), "units": {"r-a-0": facts("r-a-0", phase="Healing")}}, "Degraded",
            ("True", "UnitHealing"), id="healing",
        ),
        pytest.param(
            {"feed": feed(), "units": {"r-a-0": facts("r-a-0", phase="Failed")}}, "Degraded",
            ("True", "UnitFailed"), id="failed-unit",
        ),
        pytest.param(
            {"feed": feed(), "units": {"r-a-0": facts("r-a-0", run="other")}}, "Degraded",
            ("True", "NameTaken"), id="taken",
        ),
        pytest.param({"feed": feed("Finished")}, "Complete", ("True", "TargetReached"), id="finished"),
        pytest.param({"feed": feed("Finished")}, "Ready", ("True", "TargetReached"), id="finished-is-ready"),
        pytest.param({"feed": feed("Failed", message="x")}, "Failed", ("True", "SyncerFailed"), id="syncer-failed"),
        pytest.param({"feed": feed("Failed")}, "Stalled", ("True", "SyncerFailed"), id="stalled"),
        pytest.param(
            {"syncer_pods": (PodView(name="r-syncer-0"), TERMINAL)}, "Failed", ("True", "LayoutMismatch"), id="terminal"
        ),
        pytest.param(
            {"feed": replace(feed(), down="shard 1: x")}, "Degraded", ("True", "SyncerShardDown"), id="shard-down"
        ),
        pytest.param(
            {"feed": replace(feed(), down="shard 1: x")}, "Progressing", ("True", "Merging"), id="shard-down-goes-on"
        ),
        pytest.param(
            {"feed": FeedState(status=BEGINS, answering_since=NOW, down="shard 1: x")}, "Degraded",
            ("False", "AsExpected"), id="shard-starts",
        ),
        pytest.param({"spec": {"suspend": True}}, "Suspended", ("True", "Suspended"), id="suspended"),
    ],
)  # fmt: skip
def test_conditions(changes, name, wanted) -> None:
    assert condition(make_run(**changes), name) == wanted


@pytest.mark.parametrize(
    ("part", "reason"),
    [("Scheduled", "SpecInvalid"), ("Scheduled", "ObjectRefused"), ("Scheduled", "CapacityUnavailable"),
     ("PodsReady", "ImagePull")],
)  # fmt: skip
def test_a_unit_that_waits_for_somebody_to_act_degrades_the_run_with_its_words(part, reason) -> None:
    held = Condition(
        type=part, status="False", reason=reason, message="why", last_transition_time=format_time(NOW)
    )
    units = {"r-a-0": facts("r-a-0", conditions=(held,))}
    status = plan_run(make_run(feed=feed(), units=units), NOW).status
    found = find(status.conditions, "Degraded")
    assert (found.status, found.reason, found.message) == ("True", reason, "r-a-0: why")


def test_a_run_that_lost_its_syncer_is_degraded_and_keeps_its_figures() -> None:
    old = plan_run(make_run(feed=feed(loss=2.5)), NOW).status
    lost = make_run(
        status=old, feed=replace(feed(loss=2.5), answering_since=None, reason="SyncerUnavailable")
    )
    status = plan_run(lost, NOW + 60).status
    assert find(status.conditions, "Degraded").reason == "SyncerUnavailable"
    assert (status.phase, status.global_step, status.loss) == ("Running", 25, 2.5)


def stateful_set(plan: RunPlan) -> dict[str, Any]:
    return next(body for body in plan.apply if body["kind"] == "StatefulSet")["spec"]


def folder(plan: RunPlan) -> str:
    """Where journal and tape lie."""
    variables = stateful_set(plan)["template"]["spec"]["containers"][0]["env"]
    found: str = next(each["value"] for each in variables if each["name"] == "ATOLL_JOURNAL_DIR")
    return found


def test_each_shard_is_a_pod_that_knows_its_index_and_everyones_address() -> None:
    spec = {"syncer": {"shards": 2, "tape": "Contributions"}, "recovery": {"seed": "Peer"}}
    plan = plan_run(make_run(spec=spec), NOW)
    config = next(body for body in plan.apply if body["kind"] == "ConfigMap")
    contract = parse_run(config["data"]["run.json"])
    assert [shard.host for shard in contract.shards] == [
        "r-syncer-0.r-syncer.ns.svc",
        "r-syncer-1.r-syncer.ns.svc",
    ]
    assert (contract.seed, contract.tape) == ("Peer", "Contributions")
    syncer = stateful_set(plan)
    assert (syncer["replicas"], syncer["serviceName"]) == (2, "r-syncer")
    environment = syncer["template"]["spec"]["containers"][0]["env"]
    shard = next(item for item in environment if item["name"] == "ATOLL_SHARD")
    field = shard["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert folder(plan).startswith("/var/lib/atoll/")


def test_a_change_of_shards_gives_the_journals_a_folder_that_no_earlier_layout_had() -> None:
    status, folders = TrainingRunStatus(), []
    for shards in (2, 2, 1, 1, 2):
        run = make_run(status=status, spec={"suspend": True, "syncer": {"shards": shards}})
        plan = plan_run(run, NOW)
        again = plan_run(run, NOW + 1)  # the status was not written
        assert folder(again) == folder(plan)
        folders.append(folder(plan).rpartition("/")[2])
        status = plan.status
    assert folders == ["layout-0", "layout-0", "layout-1", "layout-1", "layout-2"]
    assert (status.syncer_shards, status.syncer_layout) == (2, 2)


def test_the_ledger_of_a_run_is_the_sum_of_its_units_and_outlives_a_silent_syncer() -> None:
    one = LedgerReport(trained=80, merged=60, discarded={"Missed": 12}, in_flight=8)
    two = LedgerReport(trained=40, merged=30, discarded={"Overwritten": 10})
    status = plan_run(make_run(feed=feed(ledger={"r-a-0": one, "r-b-0": two}, fragments=4)), NOW).status
    assert status.ledger == LedgerStatus(
        fragments=4, trained=120, merged=90, in_flight=8, discarded={"Missed": 12, "Overwritten": 10}
    )
    assert plan_run(make_run(status=status), NOW + 9).status.ledger == status.ledger


def test_a_checkpoint_stays_known_while_the_shard_that_coordinates_it_is_not_heard_of() -> None:
    told = feed(checkpoint={"newestStep": 20, "uri": "gs://bucket/run"})
    status = plan_run(make_run(feed=told), NOW).status
    assert plan_run(make_run(feed=feed(), status=status), NOW + 9).status.checkpoint.step == 20


def test_progress_is_of_the_target_that_comes_first() -> None:
    spec = {"target": {"globalSteps": 100, "tokens": 1000}}
    assert plan_run(make_run(feed=feed(tokens=500), spec=spec), NOW).status.progress_percent == 50


def test_the_time_left_follows_the_present_speed_and_not_the_pauses_of_the_past() -> None:
    suspended_for_a_day = TrainingRunStatus(start_time=format_time(NOW - 86_400))
    run = make_run(feed=feed(tokens=25_000, tokens_per_second=500.0), status=suspended_for_a_day)
    assert plan_run(run, NOW).status.estimated_seconds_left == 150
    silent = make_run(feed=feed(tokens=25_000, tokens_per_second=0.0))
    assert plan_run(silent, NOW).status.estimated_seconds_left is None


def test_the_end_is_written_before_anything_is_removed() -> None:
    run = make_run(feed=feed("Finished"), spec={"ttlSecondsAfterFinished": 60})
    first = plan_run(run, NOW)
    assert (first.remove, first.apply, first.poll) == ((), (), False)
    second = plan_run(replace(run, status=first.status), NOW + 1)
    assert {item.kind for item in second.remove} == {"StatefulSet", "Service"}
    assert second.status == first.status
    assert second.wake == NOW + 60
    assert plan_run(replace(run, status=first.status), NOW + 61).delete


def test_a_failed_run_keeps_its_journal() -> None:
    run = make_run(feed=feed("Failed", message="x"))
    plan = plan_run(replace(run, status=plan_run(run, NOW).status), NOW)
    sets = [body for body in plan.apply if body["kind"] == "StatefulSet"]
    assert [body["spec"]["replicas"] for body in sets] == [0]
    assert not plan.remove


def test_a_unit_on_its_way_out_is_not_counted_among_those_that_are_wanted() -> None:
    run = make_run(feed=feed())
    fewer = make_run(feed=feed(), spec={"units": 1}, units=run.units)
    status = plan_run(fewer, NOW).status
    assert (status.units_summary, find(status.conditions, "Ready").message[:20]) == (
        "1/1",
        "1 of 1 units learn, ",
    )


def test_the_last_heal_of_a_run_is_that_which_began_last_though_its_unit_is_not_the_last_to_fail() -> None:
    def healed(at: float, seconds: float) -> Heal:
        return Heal(incarnation=2, reason="AppError", started_at=format_time(NOW + at), seconds=seconds)

    units = {
        "r-a-0": facts("r-a-0", last_heal=healed(0, 5.0)),
        "r-b-0": facts("r-b-0", last_heal=healed(60, 7.0)),
        "r-b-1": facts("r-b-1"),
    }
    assert plan_run(make_run(units=units, feed=feed()), NOW + 90).status.last_heal_seconds == 7.0


def test_a_deadline_fails_the_run_and_wakes_us_for_it() -> None:
    run = make_run(spec={"activeDeadlineSeconds": 60})
    assert plan_run(run, NOW).wake == NOW + 60
    late = replace(run, status=plan_run(run, NOW).status)
    assert find(plan_run(late, NOW + 61).status.conditions, "Failed").reason == "DeadlineExceeded"


def test_a_deadline_stands_still_while_the_run_is_suspended() -> None:
    spec = {"activeDeadlineSeconds": 60}
    run = make_run(spec=spec | {"suspend": True})
    for later in (0, 3600):
        plan = plan_run(run, NOW + later)
        assert (plan.status.phase, plan.wake) == ("Suspended", None)
        run = replace(run, status=plan.status)
    resumed = make_run(spec=spec, status=run.status)
    plan = plan_run(resumed, NOW + 3610)
    assert plan.status.suspended_seconds == 3610
    resumed = replace(resumed, status=plan.status, feed=feed())
    assert plan_run(resumed, NOW + 3669).status.phase == "Running"
    assert plan_run(resumed, NOW + 3670).status.phase == "Failed"


def test_a_second_look_changes_nothing() -> None:
    run = make_run(feed=feed())
    status = plan_run(run, NOW).status
    assert plan_run(replace(run, status=status), NOW).status == status


SAYS = ("Ready", "Progressing", "Degraded")


def said(status: TrainingRunStatus, *names: str) -> list[Condition]:
    return [find(status.conditions, name) for name in names or SAYS]


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({"feed": feed()}, id="sound"),
        pytest.param({"feed": feed(checkpoint={"error": "no"})}, id="degraded"),
        pytest.param({"feed": feed(), "units": {"r-a-0": facts("r-a-0")}}, id="below-its-quorum"),
        pytest.param({"feed": FeedState(reason="SyncerCertificateInvalid", message="m")}, id="lost"),
    ],
)
def test_an_operator_that_has_just_begun_says_of_a_run_what_it_finds(known) -> None:
    run = make_run(**known)
    found = plan_run(run, NOW).status
    begun = replace(run, status=found, feed=FeedState())
    for later, seen in ((60.0, None), (60.0, NOW + 60), (89.0, NOW + 60)):
        status = plan_run(replace(begun, seen=seen), NOW + later).status
        assert said(status) == said(found)
        assert (status.phase, status.message) == (found.phase, found.message)


def test_an_operator_that_hears_nothing_of_a_syncer_does_not_believe_the_past_for_ever() -> None:
    found = plan_run(make_run(feed=feed()), NOW).status
    begun = make_run(status=found, seen=NOW + 60)
    ready, _, degraded = said(plan_run(begun, NOW + 91).status)
    assert (ready.status, degraded.status, degraded.reason) == ("False", "True", "SyncerUnavailable")
    silent = replace(begun, feed=FeedState(reason="SyncerUnavailable", message="no route"))
    assert said(plan_run(silent, NOW + 61).status, "Ready")[0].status == "False"


def test_a_syncer_whose_pods_its_statefulset_does_not_make_says_where_to_look() -> None:
    silent = make_run(feed=SILENT, spec={"syncer": {"shards": 2}}, syncer_pods=(PodView(name="r-syncer-1"),))
    ready = said(plan_run(silent, NOW).status, "Ready")[0]
    assert ready.message == "no pod r-syncer-0: see kubectl describe statefulset r-syncer"
    waits = replace(silent, syncer_pods=(PodView(name="r-syncer-1", unschedulable="0/3 nodes: cpu"),))
    ready = said(plan_run(waits, NOW).status, "Ready")[0]
    assert ready.message.startswith("r-syncer-1: 0/3 nodes: cpu; no pod r-syncer-0: ")


def test_a_run_that_is_resumed_is_not_what_it_was_in_its_suspension() -> None:
    suspended = plan_run(make_run(spec={"suspend": True}), NOW).status
    assert suspended.phase == "Suspended"
    resumed = plan_run(make_run(status=suspended), NOW + 60).status
    assert [item.reason for item in said(resumed, "Ready", "Suspended")] == ["SyncerStarting", "NotSuspended"]


SILENT = FeedState(reason="SyncerUnavailable", message="no route")
RESTING = {name: facts(name, learning=False) for name in ("r-a-0", "r-b-0", "r-b-1")}


def unborn() -> RunObserved:
    """A run before its first visit."""
    return make_run(units=RESTING)


def resumed() -> RunObserved:
    """A run that trained, was suspended, and is to go on."""
    trained = plan_run(make_run(feed=feed()), NOW - 7200).status
    suspended = make_run(
        status=trained, spec={"suspend": True}, feed=feed(), cut=CutOrder(25, "it refuses"), units=RESTING
    )
    status = plan_run(suspended, NOW - 3600).status
    assert (status.phase, status.global_step) == ("Suspended", 25)
    return make_run(status=status, units=RESTING, seen=NOW - 7200)


def carried(run: RunObserved, now: float, **changes: Any) -> tuple[RunObserved, RunPlan]:
    """The run after another pass."""
    run = replace(run, **changes)
    plan = plan_run(run, now)
    return replace(run, status=plan.status), plan


@pytest.mark.parametrize("begin", [unborn, resumed])
def test_a_run_that_starts_is_not_called_ill_while_its_syncer_may_be_still_to_come(begin) -> None:
    run, plan = carried(begin(), NOW)
    for later in (0.0, 3.0, 60.0, 1799.0):
        run, plan = carried(run, NOW + later, feed=SILENT if later else FeedState())
        assert [(item.status, item.reason) for item in said(plan.status)] == [
            ("False", "SyncerStarting"), ("False", "SyncerStarting"), ("False", "AsExpected"),
        ]  # fmt: skip
        assert (plan.status.phase, plan.notices) == ("Starting", ())
        assert plan.wake == NOW + 1800, "nothing else would have it looked at again"
    run, plan = carried(run, NOW + 1800)
    ready, _, degraded = said(plan.status)
    assert ready.reason == degraded.reason == "SyncerUnavailable"
    assert (degraded.status, degraded.message) == ("True", "no route"), "no unit trains on"
    assert (plan.wake, plan.notices) == (None, ())


@pytest.mark.parametrize("begin", [unborn, resumed])
def test_a_syncer_that_was_there_is_missed_at_once_however_young_the_run_is(begin) -> None:
    run, _ = carried(begin(), NOW)
    run, plan = carried(run, NOW + 20, feed=feed())
    assert (plan.status.phase, said(plan.status, "Degraded")[0].reason) == ("Running", "AsExpected")
    _, plan = carried(run, NOW + 30, feed=replace(SILENT, status=feed().status))
    ready, _, degraded = said(plan.status)
    assert (ready.reason, degraded.reason) == ("SyncerUnavailable", "SyncerUnavailable")
    assert degraded.message == "no route; units train on without merges"


def test_a_wrong_syncer_is_told_of_at_once_while_a_run_is_resumed() -> None:
    run, _ = carried(resumed(), NOW)
    _, plan = carried(run, NOW + 3, feed=FeedState(reason="SyncerCertificateInvalid", message="m"))
    assert [item.reason for item in said(plan.status)] == ["SyncerCertificateInvalid"] * 3


def test_a_shard_that_comes_late_at_a_resumption_is_down_when_units_learn_without_it() -> None:
    half = replace(feed(), down="shard 1: has not answered yet")
    run, _ = carried(resumed(), NOW)
    for later in (5.0, 10.0, 1799.0):
        run, plan = carried(run, NOW + later, feed=half)
        assert (plan.status.phase, said(plan.status, "Degraded")[0].reason) == ("Starting", "AsExpected")
    _, late = carried(run, NOW + 1800)
    assert said(late.status, "Degraded")[0].reason == "SyncerShardDown"
    _, learns = carried(run, NOW + 15, units={"r-a-0": facts("r-a-0")})
    assert (learns.status.phase, said(learns.status, "Degraded")[0].reason) == ("Running", "SyncerShardDown")


def test_a_suspension_that_is_taken_back_gives_the_syncer_no_time_to_come() -> None:
    trained = plan_run(make_run(feed=feed()), NOW - 7200).status
    stopping = make_run(status=trained, spec={"suspend": True}, feed=feed())
    status = plan_run(stopping, NOW).status
    assert status.phase == "Suspending"
    _, plan = carried(make_run(status=status), NOW + 5, feed=SILENT)
    assert said(plan.status, "Degraded")[0].reason == "SyncerUnavailable"


def test_a_run_that_stays_refused_has_the_same_status_at_every_try() -> None:
    run = make_run(feed=feed())
    old = plan_run(run, NOW).status
    tries = []
    for later in (5.0, 10.0, 15.0):
        planned = plan_run(replace(run, status=old), NOW + later).status
        old = with_problem(planned, old, "Degraded", "Service 'r-syncer' is another's", NOW + later)
        tries.append(document(old))
    degraded = said(old, "Degraded")[0]
    assert (degraded.status, degraded.last_transition_time) == ("True", format_time(NOW + 5))
    assert tries[0] == tries[1] == tries[2]
