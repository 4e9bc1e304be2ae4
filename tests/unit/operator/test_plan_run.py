"""A run's objects, its conditions, its start and its end."""

from __future__ import annotations

from typing import Any

import pytest
from objects import TWO_HOSTS
from pod_kinds import values
from run_scene import NOW, RunScene, condition, pod, replicas, specs, unit_status

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.learnerunit import Heal
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.conditions import document, find, format_time, refused, state, transition
from atoll_operator.plan.run.workloads import batches, syncer_digest
from atoll_runtime.contract import ENV_SYNCER, LedgerReport, parse_run, parse_syncer
from atoll_runtime.protocol.claims import impossible

TERMINAL = pod("r-syncer-1", exit_code=64, message="LayoutMismatch: no")
POOLS = [
    {"name": "b", "accelerator": "tpu-v5p-slice", "topology": "2x2x1", "units": 2, "capacity": "Spot"},
    {"name": "a", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 1, "batch": 4},
]
UNITS = ("r-a-0", "r-b-0", "r-b-1")
DOWN = "shard 1: x"


def scene(learning: bool = True, **spec: Any) -> RunScene:
    """Three units of two pools, and a quorum of two."""
    made = RunScene(POOLS, **({"quorum": {"min": 2}} | spec))
    for name in UNITS:
        made.unit(name, unit_status(learning))
    return made


def test_units_have_streams_batches_and_capacity_of_their_pools_in_any_order() -> None:
    plan = RunScene(POOLS).plan()
    found = specs(plan)
    assert {name: spec["stream"] for name, spec in found.items()} == {"r-a-0": 0, "r-b-0": 1, "r-b-1": 2}
    assert [found[name]["batch"] for name in ("r-a-0", "r-b-0")] == [4, 8]
    assert found["r-b-0"]["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert found["r-b-0"]["tolerations"][0]["key"] == "cloud.google.com/gke-spot"
    assert RunScene(POOLS[::-1]).plan().apply_units == plan.apply_units


def test_contract_has_the_sections_of_the_spec_and_an_address_for_each_shard() -> None:
    recovery, syncer = {"seed": "Peer", "audit": 500}, {"shards": 2, "tape": "Contributions"}
    plan = scene(syncer=syncer, recovery=recovery).plan()
    config = next(body for body in plan.apply if body["kind"] == "ConfigMap")
    found = parse_run(config["data"]["run.json"])
    assert (found.uid, found.quorum.min, found.seed, found.tape) == ("u", 2, "Peer", "Contributions")
    assert found.audit == 500
    assert [shard.host for shard in found.shards] == [f"r-syncer-{n}.r-syncer.ns.svc" for n in range(2)]
    assert replicas(plan) == 2


def test_the_syncer_is_told_the_guard_and_every_batch_that_a_unit_may_have() -> None:
    made = scene(outer={"guard": False})
    made.unit("r-a-0", spec=TWO_HOSTS.model_copy(update={"pool": "a", "batch": 2}))
    config, _, stateful_set, _ = made.plan().apply
    default, *_ = scene().plan().apply
    guards = [parse_run(each["data"]["run.json"]).outer.guard for each in (default, config)]
    told = values(stateful_set["spec"]["template"])[ENV_SYNCER]
    assert guards == [True, False]
    assert parse_syncer(told).batches == {"r-a": (2, 4), "r-b": (8,)}


def with_guests(**batches: int) -> RunScene:
    """The run with units of these names and batches that a user made."""
    made = scene()
    for name, batch in batches.items():
        guest = TWO_HOSTS.model_copy(update={"pool": "guests", "batch": batch})
        made.unit(name.replace("_", "-"), spec=guest, owned=False, by_hand=True)
    return made


@pytest.mark.parametrize(
    ("before", "after", "restarts"),
    [
        ({}, {"guest": 4}, False),
        ({}, {"guest": 8}, False),
        ({}, {"guest": 9}, True),
        ({"guest": 8}, {"guest": 4}, False),
        ({"guest": 9}, {"guest": 9, "guest_2": 9}, False),
        ({"guest": 9, "guest_2": 16}, {"guest": 12, "guest_2": 16}, False),
        ({}, {"r_a_9": 4}, False),
        ({"r_a_9": 4}, {"r_a_9": 8}, True),
        ({"r_a_9": 8}, {"r_a_9": 2}, True),
        ({}, {"r_a_9": 2}, False),
    ],
)
def test_the_syncer_restarts_if_a_unit_made_by_hand_has_a_batch_that_the_shards_would_refuse(
    before: dict[str, int], after: dict[str, int], restarts: bool
) -> None:
    """The pools' batches are 4 (pool a) and 8."""
    runs = [with_guests(**units).run() for units in (before, after)]
    first, second = (syncer_digest(run) for run in runs)
    assert (first != second) is restarts
    told, unit_names = batches(runs[restarts]), [name.replace("_", "-") for name in after]
    for name, batch in zip(unit_names, after.values(), strict=True):
        assert not impossible(2, 2 * batch, told, name, elapsed=1.0, fastest=0.0)


def test_units_made_by_hand_and_those_being_deleted_leave_the_batches_of_pools() -> None:
    pool = {"accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 1}
    made = RunScene([{"name": "a", **pool}, {"name": "a-3", "batch": 16, **pool}])
    long = "x" * 63
    for name, of_pool, batch, by_hand in (
        ("r-a-3", "guests", 9, True), ("guest", "a", 64, False), ("other", long, 2, False),
        ("r-a-0", "a", 4, False),
    ):  # fmt: skip
        spec = TWO_HOSTS.model_copy(update={"pool": of_pool, "batch": batch})
        made.unit(name, spec=spec, owned=False, by_hand=by_hand)
    assert batches(made.run()) == {
        "r-a": (8,), "r-a-3": (9, 16), "guest": (8, 64), "other": (2,), "r-a-0": (4, 8),
    }  # fmt: skip
    assert ENV_SYNCER in values(made.plan().apply[2]["spec"]["template"])


def holds(reason: str, part: str = "Scheduled") -> Any:
    conditions = transition((), {part: state(False, reason, "why")}, 1, NOW)
    return lambda s: s.unit("r-a-0", unit_status(conditions=conditions))


CONDITIONS: list[tuple[Any, str, str, str]] = [
    (lambda s: s, "Ready", "True", "QuorumLearning"),
    (lambda s: s.only("r-a-0"), "Ready", "False", "QuorumNotMet"),
    (lambda s: s.unknown(), "Ready", "False", "SyncerStarting"),
    (lambda s: s.syncer("Starting", message="bucket"), "Ready", "False", "SyncerStarting"),
    (lambda s: s.unknown().silent("SyncerWrong"), "Degraded", "True", "SyncerWrong"),
    (lambda s: s.syncer(checkpoint={"error": "no"}), "Degraded", "True", "CheckpointFailed"),
    (lambda s: s.unit("r-a-0", unit_status(phase="Healing")), "Degraded", "True", "UnitHealing"),
    (lambda s: s.unit("r-a-0", unit_status(phase="Failed")), "Degraded", "True", "UnitFailed"),
    (lambda s: s.unit("r-a-0", run="other"), "Degraded", "True", "NameTaken"),
    (holds("SpecInvalid"), "Degraded", "True", "SpecInvalid"),
    (holds("ObjectRefused"), "Degraded", "True", "ObjectRefused"),
    (holds("CapacityUnavailable"), "Degraded", "True", "CapacityUnavailable"),
    (holds("Queued"), "Degraded", "True", "Queued"),
    (holds("ImagePull", "PodsReady"), "Degraded", "True", "ImagePull"),
    (lambda s: s.syncer("Finished"), "Complete", "True", "TargetReached"),
    (lambda s: s.syncer("Finished"), "Ready", "True", "TargetReached"),
    (lambda s: s.syncer("Failed", message="x"), "Failed", "True", "SyncerFailed"),
    (lambda s: s.syncer("Failed"), "Stalled", "True", "SyncerFailed"),
    (lambda s: s.see(syncer_pods=(pod("r-syncer-0"), TERMINAL)), "Failed", "True", "LayoutMismatch"),
    (lambda s: s.syncer(down=DOWN), "Degraded", "True", "SyncerShardDown"),
    (lambda s: s.syncer(down=DOWN), "Progressing", "True", "Merging"),
    (lambda s: s.syncer(down=DOWN, global_step=0), "Degraded", "False", "AsExpected"),
    (lambda s: s.unknown().change(suspend=True), "Suspended", "True", "Suspended"),
]


@pytest.mark.parametrize(
    ("act", "name", "status", "reason"), CONDITIONS, ids=[f"{r[1]}-{r[3]}" for r in CONDITIONS]
)
def test_condition(act: Any, name: str, status: str, reason: str) -> None:
    found = act(scene()).condition(name)
    assert found[:2] == (status, reason)
    assert "why" not in found[2] or found[2] == "r-a-0: why"


def test_figures_of_progress_ledger_and_heals() -> None:
    one = LedgerReport(trained=80, merged=60, discarded={"Missed": 12}, in_flight=8)
    two = LedgerReport(trained=40, merged=30, discarded={"Refused": 10})
    run = scene(target={"globalSteps": 100, "tokens": 50_000})
    run.status = TrainingRunStatus(start_time=format_time(NOW - 86_400))  # it was suspended for a day
    run.syncer(tokens=25_000, tokens_per_second=500.0, ledger={"r-a-0": one, "r-b-0": two}, fragments=4)
    for name, began, seconds in (("r-a-0", 0, 5.0), ("r-b-0", 60, 7.0)):
        heal = Heal(incarnation=2, reason="AppError", started_at=format_time(NOW + began), seconds=seconds)
        run.unit(name, unit_status(last_heal=heal))
    status = run.step(90).status
    assert status.progress_percent == 50, "the target that comes first"
    assert status.last_heal_seconds == 7.0, "the heal that began last"
    discarded = {"Missed": 12, "Refused": 10}
    assert status.ledger == LedgerStatus(
        fragments=4, trained=120, merged=90, in_flight=8, discarded=discarded
    )
    assert run.unknown().plan(99).status.ledger == status.ledger


def test_unit_that_is_being_scaled_away_is_not_counted() -> None:
    run = scene(units=1)
    assert run.plan().status.units_summary == "1/1"
    assert run.condition("Ready")[2].startswith("1 of 1 units learn, ")


def test_end_is_written_before_anything_is_deleted_and_then_the_run_itself() -> None:
    run, syncer = scene(ttlSecondsAfterFinished=60).syncer("Finished"), ("StatefulSet", "r-syncer")
    first = run.step()
    assert (syncer in first.delete, first.apply, first.poll_syncer) == (False, (), False)
    second = run.step(1)
    gone = {kind for kind, name in second.delete if name == "r-syncer"}
    assert gone == {"StatefulSet", "Service", "PodDisruptionBudget"}
    assert (second.status, second.wake) == (first.status, NOW + 60)
    assert run.plan(61).delete_run
    failed = scene().syncer("Failed", message="x")
    failed.step()
    assert (replicas(failed.plan()), syncer in failed.plan().delete) == (0, False), "it keeps its journal"


def test_deadline_fails_the_run_but_excludes_suspension() -> None:
    run = scene(activeDeadlineSeconds=60)
    assert run.step().wake == NOW + 60
    assert run.condition("Failed", 61)[1] == "DeadlineExceeded"
    run = scene(activeDeadlineSeconds=60, suspend=True).unknown()
    for later in (0, 3600):
        plan = run.step(later)
        assert (plan.status.phase, plan.wake) == ("Suspended", None)
    run.change(suspend=False).step(3610)
    assert run.status.suspended_seconds == 3610
    run.syncer()
    assert [run.plan(later).status.phase for later in (3669, 3670)] == ["Running", "Failed"]


def test_new_operator_believes_the_status_until_it_has_polled() -> None:
    sound, degraded = scene(), scene().syncer(checkpoint={"error": "no"})
    lost = scene().unknown().silent("SyncerCertificateInvalid")
    for run in (sound, degraded, scene().only("r-a-0"), lost):
        found = run.step().status
        status = run.unknown().plan(60.0).status
        for name in ("Ready", "Progressing", "Degraded"):
            assert find(status.conditions, name) == find(found.conditions, name)
        assert (status.phase, status.message) == (found.phase, found.message)
    assert sound.silent().condition("Ready", 61)[0] == "False"
    assert sound.condition("Degraded", 61)[:2] == ("True", "SyncerUnavailable")


def test_syncer_pods_that_are_missing_wait_or_have_ended_are_named_until_they_run() -> None:
    run = scene(syncer={"shards": 2}).unknown().silent().see(syncer_pods=(pod("r-syncer-1"),))
    assert run.condition("Ready")[2] == "no pod r-syncer-0: see kubectl describe statefulset r-syncer"
    run.see(syncer_pods=(pod("r-syncer-1", unschedulable="0/3 nodes: cpu"),))
    assert run.condition("Ready")[2].startswith("r-syncer-1: 0/3 nodes: cpu; no pod r-syncer-0: ")
    run, ended = scene().unknown().silent(), {"exit_code": 1, "message": "JournalFailed: x"}
    assert "JournalFailed" in run.see(syncer_pods=(pod("r-syncer-0", **ended),)).condition("Ready")[2]
    again = pod("r-syncer-0", running={"startedAt": format_time(NOW)}, **ended)
    assert run.see(syncer_pods=(again,)).condition("Ready")[2] == "no route"


def new_run() -> RunScene:
    return scene(learning=False).unknown()


def resumed_run() -> RunScene:
    """It trained and was suspended at step 25."""
    run = scene()
    run.step(-7200)
    for name in UNITS:
        run.unit(name, unit_status(False))
    run.change(suspend=True).ordered("it refuses").step(-3600)
    assert (run.status.phase, run.status.global_step) == ("Suspended", 25)
    return run.change(suspend=False).unknown()


BEGINS = pytest.mark.parametrize("begin", [new_run, resumed_run])


@BEGINS
def test_run_that_starts_is_not_degraded_while_its_syncer_may_still_come(begin: Any) -> None:
    run = begin()
    for later in (0.0, 3.0, 60.0, 1799.0):
        plan = run.step(later)
        found = [condition(plan.status, name)[:2] for name in ("Ready", "Progressing", "Degraded")]
        assert found == [("False", "SyncerStarting"), ("False", "SyncerStarting"), ("False", "AsExpected")]
        assert plan.status.phase == "Starting"
        assert not [notice for notice in plan.notices if notice.type == "Warning"]
        assert plan.wake == NOW + 1800, "nothing else would wake it"
        run.silent()
    plan = run.step(1800)
    assert condition(plan.status, "Ready")[1] == "SyncerUnavailable"
    assert condition(plan.status, "Degraded") == ("True", "SyncerUnavailable", "no route")
    assert plan.wake is None


@BEGINS
def test_syncer_that_answered_once_is_missed_at_once(begin: Any) -> None:
    run = begin()
    run.step()
    plan = run.syncer().step(20)
    assert (plan.status.phase, condition(plan.status, "Degraded")[1]) == ("Running", "AsExpected")
    degraded = run.silent().condition("Degraded", 30)
    assert degraded[1:] == ("SyncerUnavailable", "no route; units train on without merges")
    wrong = begin()
    wrong.step()
    wrong.silent("SyncerCertificateInvalid")
    found = {wrong.condition(name, 3)[1] for name in ("Ready", "Progressing", "Degraded")}
    assert found == {"SyncerCertificateInvalid"}, "no time to start is given to it"


def test_late_shard_degrades_a_resumed_run_once_units_learn_without_it() -> None:
    run = resumed_run()
    run.step()
    run.syncer(down="shard 1: has not answered yet")
    for later in (5.0, 10.0, 1799.0):
        plan = run.step(later)
        assert (plan.status.phase, condition(plan.status, "Degraded")[1]) == ("Starting", "AsExpected")
    assert run.condition("Degraded", 1800)[1] == "SyncerShardDown"
    run.unit("r-a-0", unit_status())
    plan = run.plan(15)
    assert (plan.status.phase, condition(plan.status, "Degraded")[1]) == ("Running", "SyncerShardDown")


def test_suspension_that_is_taken_back_gives_the_syncer_no_time_to_start() -> None:
    run = scene()
    run.step(-7200)
    assert run.change(suspend=True).step().status.phase == "Suspending"
    run.change(suspend=False).unknown().silent()
    assert run.condition("Degraded", 5)[1] == "SyncerUnavailable"


def test_run_that_stays_refused_has_the_same_status_at_every_try() -> None:
    run, tries = scene(), []
    old = run.step().status
    for later in (5.0, 10.0, 15.0):
        run.status = old
        old = refused(run.plan(later).status, old, "Degraded", "Service 'r-syncer' is another's", NOW + later)
        tries.append(document(old))
    degraded = find(old.conditions, "Degraded")
    assert (degraded.status, degraded.last_transition_time) == ("True", format_time(NOW + 5))
    assert tries[0] == tries[1] == tries[2]
