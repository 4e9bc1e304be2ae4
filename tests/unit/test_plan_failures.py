"""Failures that pods do not tell of themselves: lost nodes, hangs, maintenance; and the budget of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import TWO_HOSTS as SPEC

from atoll_operator.api.learnerunit import LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.kube.keys import Key
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import find, is_true
from atoll_operator.plan.nodes import IMPENDING_TERMINATION, PROOF_SECONDS, NodeView, gone, view_node
from atoll_operator.plan.pods.capacity import SPOT
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.removal import DRAIN_SECONDS
from atoll_operator.plan.run.syncer_state import SyncerState, heard
from atoll_operator.plan.unit import budget, hang
from atoll_operator.plan.unit.failure import classify, first_cause
from atoll_operator.plan.unit.hang import Pace
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_operator.plan.unit.unitplan import UnitPlan
from atoll_operator.reconcilers.inventory import Inventory
from atoll_runtime.contract import SyncerStatus, UnitReport

NOW = 1_700_000_000.0
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
PLACED = LearnerUnitStatus(phase="Joining", incarnation=1, gang=1, placed_gang=1)
READY, SILENT = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "Unknown"}


def make_orders(**recovery: Any) -> Orders:
    return Orders(stop="", finishing=False, recovery=RecoverySpec(**recovery), settings=SETTINGS)


def make_pod(incarnation: int = 1, host: int = 0, **changes: Any) -> PodView:
    name = f"r-two-0-{incarnation}-{host}"
    running = {"phase": "Running", "node": f"n{host}", "ready": True, "started_at": NOW - 9000}
    return PodView(
        name=name,
        uid=name,
        unit="r-two-0",
        gang=incarnation,
        incarnation=incarnation,
        host=host,
        **(running | changes),
    )


def make_unit(*nodes: NodeView, **changes: Any) -> UnitObserved:
    values: dict[str, Any] = {
        "name": "r-two-0", "namespace": "ns", "uid": "u", "generation": 1, "spec": SPEC, "status": PLACED,
        "pods": (make_pod(host=0), make_pod(host=1)), "orders": make_orders(),
        "nodes": {node.name: node for node in nodes},
    }  # fmt: skip
    return UnitObserved(**(values | changes))


def test_a_suspension_does_not_wait_for_the_pod_of_a_lost_node() -> None:
    leaving = tuple(make_pod(host=host, deletion_time=NOW) for host in (0, 1))
    unit = make_unit(
        NodeView(name="n0"),
        NodeView(name="n1", silent_since=NOW),
        pods=leaving,
        orders=replace(make_orders(node_lost_seconds=3), stop="Suspended"),
    )
    assert is_true(plan_unit(unit, NOW + 4).status.conditions, "Draining")  # the other one is on its way
    alone = replace(unit, pods=leaving[1:])
    early = plan_unit(alone, NOW + 2)
    assert is_true(early.status.conditions, "Draining") and early.wake == NOW + 3
    assert not is_true(plan_unit(alone, NOW + 4).status.conditions, "Draining")


def make_node(name: str = "n1", *conditions: Any, taints: Any = (), labels: Any = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": list(conditions)},
    }


def learning(incarnation: int = 1, **changes: Any) -> UnitReport:
    values = {"hosts": 2, "state": "Learning", "step": 40, "loss": 3.5}
    return UnitReport(incarnation=incarnation, **(values | changes))


def reason(plan: UnitPlan) -> str:
    return plan.status.last_failure.reason if plan.status.last_failure is not None else ""


@pytest.mark.parametrize(
    ("node", "why"),
    [
        pytest.param(NodeView(name="n1", silent_since=NOW - 5), "not been ready", id="silent"),
        pytest.param(gone(NodeView(name="n1")), "does not exist", id="gone"),
        pytest.param(NodeView(name="n1", out_of_service=True), "out-of-service", id="out-of-service"),
    ],
)  # fmt: skip
def test_the_gang_of_a_lost_node_is_replaced_at_once(node, why) -> None:
    plan = plan_unit(make_unit(node), NOW)
    assert plan.advance
    assert (plan.status.incarnation, reason(plan)) == (2, "NodeLost")
    assert (plan.status.last_failure.pod, plan.status.last_failure.node) == ("r-two-0-1-1", "n1")
    assert why in plan.status.last_failure.message
    following = plan_unit(make_unit(node, status=plan.status), NOW)
    assert [pod["metadata"]["name"] for pod in following.create] == ["r-two-0-2-0", "r-two-0-2-1"]


def test_a_zombie_on_a_lost_node_holds_nothing_up() -> None:
    zombies = (make_pod(host=1, deletion_time=NOW - 3600),)
    status = PLACED.model_copy(update={"incarnation": 2, "gang": 2})
    node = NodeView(name="n1", silent_since=NOW - 3600)
    plan = plan_unit(make_unit(node, pods=zombies, status=status), NOW)
    assert len(plan.create) == 2
    assert (plan.remove, plan.wake) == ((), None)
    rules = plan.create[0]["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rules[0]["labelSelector"]["matchLabels"]["atoll.dev/gang"] == "2"


def test_a_node_that_flaps_for_less_than_the_setting_makes_no_heal() -> None:
    known = view_node(make_node("n1", READY), None, NOW)
    silent = view_node(make_node("n1", SILENT), known, NOW + 1)
    still = view_node(make_node("n1", SILENT), silent, NOW + 3)
    assert still.silent_since == NOW + 1
    plan = plan_unit(make_unit(still), NOW + 3)
    assert not plan.advance
    assert plan.wake == NOW + 4
    back = view_node(make_node("n1", READY), still, NOW + 3.5)
    assert not plan_unit(make_unit(back), NOW + 60).advance
    again = view_node(make_node("n1", SILENT), back, NOW + 60)
    assert plan_unit(make_unit(again), NOW + 62).wake == NOW + 63


def test_how_long_a_node_may_be_silent_is_the_runs_choice() -> None:
    node = NodeView(name="n1", silent_since=NOW)
    patient = make_unit(node, orders=make_orders(node_lost_seconds=120))
    assert not plan_unit(patient, NOW + 119).advance
    assert plan_unit(patient, NOW + 120).advance
    assert plan_unit(make_unit(node, orders=make_orders(node_lost_seconds=0)), NOW).advance


def test_a_unit_that_steps_on_while_its_node_is_silent_is_not_lost_and_one_that_stops_is() -> None:
    """All kubelets are silent while they cannot reach the API server, and all units would be made anew."""
    node = NodeView(name="n1", silent_since=NOW)
    unit = make_unit(node, report=learning(), answering_since=NOW - 9, pace=Pace(1, 41, True, NOW + 2))
    plan = plan_unit(unit, NOW + 4)
    assert not plan.advance and plan.wake == NOW + 2 + PROOF_SECONDS
    assert plan_unit(unit, plan.wake).advance
    assert not plan_unit(replace(unit, pace=Pace(1, 42, True, plan.wake)), plan.wake).advance
    for pace in (None, Pace(1, 41, True, NOW), Pace(1, 0, False, NOW + 2), Pace(0, 41, True, NOW + 2)):
        assert plan_unit(replace(unit, pace=pace), NOW + 4).advance, pace
    for certain in (gone(node), replace(node, out_of_service=True)):
        assert plan_unit(replace(unit, nodes={"n1": certain}), NOW + 4).advance


def creating(host: int, **changes: Any) -> PodView:
    """It got its node at `NOW`, and its kubelet has not started the container."""
    stuck = {
        "phase": "Pending", "ready": False, "started_at": None, "scheduled_at": NOW, "waiting": "ContainerCreating",
    }  # fmt: skip
    return make_pod(host=host, **(stuck | changes))


def test_a_host_that_starts_no_container_is_left_where_others_have_started() -> None:
    unit = make_unit(pods=(make_pod(host=0), creating(1)), answering_since=NOW - 9)
    assert plan_unit(unit, NOW + 1799).wake == NOW + 1800
    plan = plan_unit(unit, NOW + 1800)
    assert (plan.advance, reason(plan), plan.status.last_failure.node) == (True, "StartupTimedOut", "n1")
    assert "others have" in plan.status.last_failure.message


def test_a_gang_none_of_whose_containers_start_stays_and_says_so() -> None:
    unit = make_unit(pods=(creating(0), creating(1, waiting="")), answering_since=NOW - 9)
    early, late = plan_unit(unit, NOW + 1799), plan_unit(unit, NOW + 1800)
    assert early.wake == NOW + 1800 and not late.advance
    told = [find(plan.status.conditions, "PodsReady") for plan in (early, late)]
    assert [item.reason for item in told] == ["PodsStarting", "ContainerCreating"]
    assert "r-two-0-1-0" in told[1].message and "n0" in told[1].message
    pulls = make_unit(pods=(make_pod(host=0), creating(1, waiting="ErrImagePull")), answering_since=NOW - 9)
    assert not plan_unit(pulls, NOW + 9000).advance


def test_pods_of_another_node_and_of_an_older_gang_are_not_lost() -> None:
    node = NodeView(name="n7", silent_since=NOW - 60)
    assert not plan_unit(make_unit(node), NOW).advance
    pods = (make_pod(1, 0, node="n7"), make_pod(2, 0), make_pod(2, 1))
    status = LearnerUnitStatus(incarnation=2, gang=2, placed_gang=2)
    assert not plan_unit(make_unit(node, pods=pods, status=status), NOW).advance


def test_a_gang_whose_node_comes_back_during_a_back_off_is_kept_and_counted_as_no_heal() -> None:
    merged = learning(first_merge_time=NOW - 500)
    recent = (Restart(time=format_time(NOW - 1), reason="AppError"),)
    status = PLACED.model_copy(update={"restarts": recent})
    silent = NodeView(name="n1", silent_since=NOW - 5)
    waits = plan_unit(make_unit(silent, status=status, report=merged, answering_since=NOW - 900), NOW)
    assert find(waits.status.conditions, "Healing").reason == "BackOff"
    back = make_unit(status=waits.status, report=merged, answering_since=NOW - 900)
    plan = plan_unit(back, NOW + 2)
    assert not plan.advance
    assert (plan.healed_seconds, plan.status.heal_start_time, plan.status.incarnation) == (None, None, 1)
    assert plan.status.phase == "Learning"


def test_a_pod_that_went_faster_than_anybody_looked_has_said_why() -> None:
    store, labels = (
        Inventory(),
        {"atoll.dev/unit": "r-two-0", "atoll.dev/gang": "1", "atoll.dev/host": "1"},
    )
    unit = Key("LearnerUnit", "ns", "r-two-0")
    store.put(
        "LearnerUnit", {"metadata": {"name": "r-two-0", "namespace": "ns", "uid": "u"}, "spec": {"run": "r"}}
    )
    why = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    pod = {
        "metadata": {
            "name": "r-two-0-1-1", "namespace": "ns", "uid": "p", "labels": labels,
            "deletionTimestamp": format_time(NOW),
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [why]},
    }  # fmt: skip
    store.put("Pod", pod)
    store.drop("Pod", pod)
    plan = plan_unit(make_unit(pods=(make_pod(),), departed=store.departed(unit)), NOW)
    assert (reason(plan), plan.status.last_failure.node) == ("Evicted", "n1")
    assert reason(plan_unit(make_unit(pods=(make_pod(),)), NOW)) == "PodDeleted"
    newer = {"name": "r-two-0-2-1", "uid": "q", "labels": labels | {"atoll.dev/gang": "2"}}
    later = pod | {"metadata": pod["metadata"] | newer}
    store.drop("Pod", later)
    store.drop("Pod", pod)
    assert {pod.name for pod in store.departed(unit).values()} == {"r-two-0-2-1"}
    store.drop(
        "LearnerUnit", {"metadata": {"name": "r-two-0", "namespace": "ns", "uid": "u"}, "spec": {"run": "r"}}
    )
    assert store.departed(unit) == {}


def test_of_pods_of_one_host_the_last_words_of_the_last_are_kept() -> None:
    store, unit = Inventory(), Key("LearnerUnit", "ns", "r-two-0")
    store.put(
        "LearnerUnit", {"metadata": {"name": "r-two-0", "namespace": "ns", "uid": "u"}, "spec": {"run": "r"}}
    )

    def go(made_for: int, message: str) -> str:
        labels = {"atoll.dev/unit": "r-two-0", "atoll.dev/gang": "1", "atoll.dev/host": "1"}
        metadata = {
            "name": f"r-two-0-{made_for}-1", "namespace": "ns", "uid": f"{made_for}", "labels": labels,
            "annotations": {"atoll.dev/made-for-incarnation": str(made_for)},
        }  # fmt: skip
        store.drop("Pod", {"metadata": metadata, "spec": {}, "status": {"message": message}})
        return store.departed(unit)[1].message

    assert [go(1, "first"), go(1, "last"), go(2, "next"), go(1, "late")] == ["first", "last", "next", "next"]


def test_no_step_within_the_time_out_is_a_hang() -> None:
    pace = Pace(1, 40, True, NOW)
    unit = make_unit(report=learning(), answering_since=NOW, pace=pace)
    assert plan_unit(unit, NOW + 599).wake == NOW + 600
    plan = plan_unit(unit, NOW + 600)
    assert (plan.advance, reason(plan), plan.status.incarnation) == (True, "Hang", 2)
    assert "inner step 40" in plan.status.last_failure.message
    assert not plan_unit(replace(unit, orders=make_orders(hang_seconds=0)), NOW + 1_000_000).advance


@pytest.mark.parametrize(
    "report", [learning(), learning(state="Joining", hosts=0, loss=None)], ids=["hang", "start"]
)
def test_an_answer_from_before_the_deadline_condemns_nobody(report) -> None:
    """Of a large run the syncer is asked every 15 s, and one that is dead is known to be so after two questions."""
    pace, late = Pace(1, 40, True, NOW), NOW + 3600
    unit = make_unit(report=report, answering_since=NOW, pace=pace, heard=NOW + 9)
    waiting = plan_unit(unit, late)
    assert not waiting.advance
    assert late < waiting.wake <= late + 2
    assert plan_unit(replace(unit, heard=late), late).advance


def test_a_first_step_has_the_time_of_a_start_for_it_compiles() -> None:
    report = learning(loss=None, step=0)
    pace = hang.follow(None, report, NOW, NOW)
    unit = make_unit(report=report, answering_since=NOW, pace=pace)
    assert plan_unit(unit, NOW + 1799).wake == NOW + 1800
    plan = plan_unit(unit, NOW + 1800)
    assert reason(plan) == "Hang"
    assert "since the hosts were connected" in plan.status.last_failure.message


def test_a_silent_syncer_is_no_hang_and_the_count_starts_again_after_it() -> None:
    pace = hang.follow(None, learning(), NOW, NOW)
    assert pace == Pace(1, 40, True, NOW)
    assert hang.follow(pace, learning(), NOW, NOW + 500) == pace
    assert hang.follow(pace, None, None, NOW + 500) is None
    assert hang.follow(pace, learning(), None, NOW + 500) is None
    again = hang.follow(None, learning(), NOW + 700, NOW + 700)
    assert not plan_unit(make_unit(report=learning(), answering_since=NOW, pace=again), NOW + 701).advance


@pytest.mark.parametrize("jump", [-700, 700, 86_400])
def test_a_clock_that_is_set_makes_no_unit_hang_and_lets_none_hang_longer(jump: int) -> None:
    told = SyncerStatus(run_uid="run", phase="Running", units={"r-two-0": learning()})
    feed, pace, verdicts = SyncerState(), None, {}
    for seconds in (0, 10, 20, 300, 619, 620):
        now = NOW + seconds + (jump if seconds >= 20 else 0)
        feed = heard(feed, told, now, float(seconds))
        pace = hang.follow(pace, learning(), feed.answering_since, now)
        unit = make_unit(report=learning(), answering_since=feed.answering_since, heard=now, pace=pace)
        verdicts[seconds] = plan_unit(unit, now).advance
    assert verdicts == {0: False, 10: False, 20: False, 300: False, 619: False, 620: True}


def test_a_clock_that_is_slewed_lets_the_count_go_on() -> None:
    told = SyncerStatus(run_uid="run", phase="Running", units={"r-two-0": learning()})
    feed = SyncerState()
    for seconds in range(0, 3600, 15):
        feed = heard(feed, told, NOW + 1.0005 * seconds, float(seconds))
    assert feed.answering_since == NOW


@pytest.mark.parametrize("change", [{"step": 41}, {"incarnation": 2}, {"loss": None}], ids=str)
def test_any_progress_starts_the_count_again(change) -> None:
    report = learning(**({"incarnation": 1} | change))
    assert hang.follow(Pace(1, 40, True, NOW), report, NOW, NOW + 9).since == NOW + 9


def test_the_pace_of_an_older_incarnation_says_nothing_of_this_one() -> None:
    status = PLACED.model_copy(update={"incarnation": 2, "gang": 2, "placed_gang": 2})
    pods = (make_pod(2, 0), make_pod(2, 1))
    pace = Pace(1, 40, True, NOW - 9000)
    unit = make_unit(pods=pods, status=status, report=learning(), answering_since=NOW - 10, pace=pace)
    assert not plan_unit(unit, NOW).advance


@pytest.mark.parametrize(
    "node",
    [
        make_node("n1", READY, taints=["cloud.google.com/impending-node-termination"]),
        make_node("n1", READY, labels={"cloud.google.com/active-node-maintenance": "ONGOING"}),
    ],
    ids=["taint", "label"],
)
def test_a_unit_leaves_a_host_that_is_about_to_go_and_moves_without_cost(node) -> None:
    host = view_node(node, None, NOW)
    first = plan_unit(make_unit(host), NOW)
    assert (first.advance, first.remove, first.status.incarnation) == (True, (), 1)
    draining = find(first.status.conditions, "Draining")
    assert (draining.status, draining.reason) == ("True", "HostMaintenance")
    told = plan_unit(make_unit(host, status=first.status), NOW)
    assert [removal.grace_seconds for removal in told.remove] == [DRAIN_SECONDS] * 2
    assert told.create == ()
    going = tuple(make_pod(host=number, deletion_time=NOW + DRAIN_SECONDS) for number in (0, 1))
    waits = plan_unit(make_unit(host, status=first.status, pods=going), NOW + 1)
    assert (waits.advance, waits.create, waits.wake) == (False, (), NOW + DRAIN_SECONDS)
    moves = plan_unit(make_unit(host, status=first.status, pods=going[:0]), NOW + 2)
    assert (moves.advance, moves.status.incarnation, reason(moves)) == (True, 2, "HostMaintenance")
    assert not is_true(moves.status.conditions, "Draining")
    assert is_true(moves.status.conditions, "Healing")
    strict = make_orders(max_restarts=1)
    placed = moves.status.model_copy(update={"gang": 2, "placed_gang": 2})
    broken = (make_pod(2, phase="Failed", exit_code=1), make_pod(2, 1))
    later = plan_unit(make_unit(status=placed, pods=broken, orders=strict), NOW + 60)
    assert (later.status.phase, later.status.incarnation) == ("Healing", 3)


def test_a_drain_that_does_not_end_is_over_after_its_time() -> None:
    host = NodeView(name="n1", maintenance="taint")
    status = plan_unit(make_unit(host), NOW).status
    stuck = (make_pod(deletion_time=NOW + DRAIN_SECONDS), make_pod(host=1, phase="Failed", exit_code=143))
    plan = plan_unit(make_unit(host, status=status, pods=stuck), NOW + DRAIN_SECONDS)
    assert plan.status.incarnation == 2


def test_a_unit_that_tolerates_every_taint_does_not_move_in_a_loop() -> None:
    host = NodeView(name="n1", maintenance="taint")
    status = PLACED.model_copy(
        update={"restarts": (Restart(time=format_time(NOW - 1), reason="HostMaintenance"),)}
    )
    plan = plan_unit(make_unit(host, status=status), NOW)
    assert not plan.advance
    assert NOW + 3 <= plan.wake <= NOW + 5
    assert plan_unit(make_unit(host, status=status), plan.wake).advance


def test_a_unit_in_its_back_off_leaves_a_host_at_once_and_comes_back_when_that_is_over() -> None:
    host = NodeView(name="n1", maintenance="taint")
    failed = PLACED.model_copy(
        update={"restarts": (Restart(time=format_time(NOW - 1), reason="ContainerFailed"),)}
    )
    told = plan_unit(make_unit(host, status=failed), NOW).status
    assert is_true(told.conditions, "Draining")
    ended = tuple(make_pod(host=number, phase="Failed", exit_code=143) for number in (0, 1))
    waits = plan_unit(make_unit(host, status=told, pods=ended), NOW)
    assert (waits.advance, waits.create, waits.remove) == (False, (), ())
    assert NOW + 3 <= waits.wake <= NOW + 5
    assert format_time(waits.wake) in waits.status.message
    comes = plan_unit(make_unit(host, status=waits.status, pods=ended), waits.wake)
    assert (comes.status.incarnation, comes.status.restart_count) == (2, 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"deletion_time": NOW}, "HostMaintenance", id="deleted"),
        pytest.param({"deletion_time": NOW, "disruption": "EvictionByEvictionAPI"}, "HostMaintenance", id="evicted"),
        pytest.param({"phase": "Failed", "exit_code": 137, "exit_reason": "OOMKilled"}, "OutOfMemory", id="crashed"),
    ],
)  # fmt: skip
def test_a_gang_that_lost_a_host_already_is_not_asked_to_leave_together(change, expected) -> None:
    host = NodeView(name="n1", maintenance="taint")
    plan = plan_unit(make_unit(host, pods=(make_pod(), make_pod(host=1, **change))), NOW)
    assert (plan.advance, plan.status.incarnation, reason(plan)) == (True, 2, expected)
    assert not is_true(plan.status.conditions, "Draining")


def test_a_run_that_ends_makes_no_pod_again() -> None:
    unit = make_unit(pods=(make_pod(host=0),), orders=replace(make_orders(), finishing=True))
    plan = plan_unit(unit, NOW)
    assert (plan.advance, plan.create) == (False, ())


def test_a_run_that_ends_moves_no_unit() -> None:
    host = NodeView(name="n1", maintenance="taint", out_of_service=True)
    orders = replace(make_orders(), finishing=True)
    assert not plan_unit(make_unit(host, orders=orders), NOW).advance


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "disruption": "TerminationByKubelet", "message": "low disk"},
            "Evicted", "low disk", id="evicted-by-the-kubelet",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Terminated", "disruption": "TerminationByKubelet"},
            "HostMaintenance", "Terminated", id="shut-down",
        ),
        pytest.param({"phase": "Failed", "reason": "Terminated", "spot": True}, "Preempted", "Terminated", id="spot"),
        pytest.param(
            {"phase": "Failed", "reason": "NodeShutdown", "spot": True, "message": "imminent"},
            "Preempted", "imminent", id="spot-shutdown",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "disruption": "TerminationByKubelet", "spot": True},
            "Evicted", "Evicted", id="evicted-on-spot",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Preempting", "disruption": "TerminationByKubelet"},
            "Preempted", "Preempting", id="for-a-critical-pod",
        ),
        pytest.param(
            {"phase": "Running", "deletion_time": NOW, "disruption": "EvictionByEvictionAPI"},
            "Evicted", "EvictionByEvictionAPI", id="evicted-by-the-api",
        ),
        pytest.param({"phase": "Failed", "exit_code": 137}, "AppError", "SIGKILL", id="killed"),
        pytest.param({"phase": "Failed", "exit_code": 139}, "AppError", "SIGSEGV", id="crashed"),
        pytest.param({"phase": "Failed", "exit_code": 160}, "AppError", "signal 32", id="without-a-name"),
            pytest.param({"phase": "Failed", "exit_code": 255}, "AppError", "exit status 255", id="no-signal"),
    ],
)  # fmt: skip
def test_a_pod_says_who_ended_it(changes, expected, words) -> None:
    cause = classify(PodView(name="p", node="n", **changes), 1)
    assert (cause.reason, words in cause.message) == (expected, True)


@pytest.mark.parametrize(
    ("selects", "labels", "taints", "expected"),
    [
        pytest.param(True, {}, (), "Preempted", id="spot-by-its-selector"),
        pytest.param(False, {SPOT: "true"}, (), "Preempted", id="spot-by-its-nodes-label"),
        pytest.param(False, {}, (), "HostMaintenance", id="not-spot"),
        pytest.param(True, {}, (IMPENDING_TERMINATION,), "HostMaintenance", id="spot-and-announced"),
    ],
)  # fmt: skip
def test_the_shutdown_of_a_spot_host_is_a_preemption_unless_it_was_announced(
    selects, labels, taints, expected
) -> None:
    node = view_node(make_node("n1", READY, taints=taints, labels=labels), None, NOW)
    body = {"metadata": {"name": "p"}, "spec": {"nodeSelector": {SPOT: "true"} if selects else {}}}
    ended = make_pod(host=1, phase="Failed", reason="Terminated", spot=view(body).spot)
    assert reason(plan_unit(make_unit(node, pods=(make_pod(), ended)), NOW)) == expected
    gone_meanwhile = make_unit(node, pods=(make_pod(),), departed={ended.host: ended})
    assert reason(plan_unit(gone_meanwhile, NOW)) == expected


def test_a_host_that_left_because_its_peer_was_told_to_is_not_the_cause() -> None:
    told = PodView(name="p-0", phase="Failed", exit_code=143, finished_at=NOW)
    evicted = PodView(name="p-1", phase="Failed", reason="Evicted", finished_at=NOW + 3)
    assert first_cause([told, evicted], 1, []).reason == "Evicted"


def restarts(count: int, why: str = "AppError") -> tuple[Restart, ...]:
    return tuple(Restart(time=format_time(NOW - count + number), reason=why) for number in range(count))


@given(count=st.integers(1, 40), jitter=st.floats(0, 1, exclude_max=True))
def test_a_back_off_doubles_has_a_bound_and_a_jitter_of_a_fifth(count, jitter) -> None:
    verdict = budget.judge(restarts(count), RecoverySpec(max_restarts=1000), NOW, jitter)
    wait = verdict.not_before - parse_time(restarts(count)[-1].time)
    middle = min(5.0 * 2 ** (count - 1), 300.0)
    assert 0.8 * middle - 1e-3 <= wait <= 1.2 * middle + 1e-3
    assert not verdict.exhausted


@pytest.mark.parametrize("why", ["HostMaintenance", "Preempted"])
def test_hosts_that_are_wanted_back_use_up_no_budget_but_wait_like_the_rest(why: str) -> None:
    recovery = RecoverySpec(max_restarts=3)
    moved = budget.judge(restarts(9, why), recovery, NOW, 0.5)
    assert (moved.exhausted, moved.not_before > NOW + 200) == (False, True)
    assert budget.judge(restarts(3), recovery, NOW, 0.5).exhausted
    assert not budget.judge(restarts(3), recovery, NOW + 3600, 0.5).exhausted


def test_the_first_pod_that_a_kubelet_turns_away_in_a_window_uses_up_no_budget_and_the_next_ones_do() -> None:
    for allowed in (0, 1, 2):
        recovery = RecoverySpec(max_restarts=allowed)
        verdicts = [
            budget.judge(restarts(count, "AdmissionRejected"), recovery, NOW, 0.5) for count in range(4)
        ]
        assert [verdict.exhausted for verdict in verdicts] == [
            max(count - 1, 0) >= allowed for count in range(4)
        ]
        assert budget.spared("AdmissionRejected", restarts(3))
        assert not budget.spared("AdmissionRejected", verdicts[1].recent)


@pytest.mark.parametrize("ahead", [120, 3600, 86_400])
def test_a_restart_that_a_clock_ahead_of_ours_noted_stops_no_heal_and_counts_all_the_same(ahead: int) -> None:
    noted = restarts(3)
    late = [item.model_copy(update={"time": format_time(NOW + ahead)}) for item in noted]
    verdict = budget.judge(late, RecoverySpec(), NOW, 0.5)
    assert (verdict.not_before, verdict.exhausted, len(verdict.recent)) == (NOW, False, 3)
    assert budget.judge(late, RecoverySpec(max_restarts=3), NOW, 0.5).exhausted
    written = (*verdict.recent, Restart(time=format_time(NOW), reason="AppError"))
    for look in (NOW + 1, NOW + 9):
        assert budget.judge(written, RecoverySpec(), look, 0.5).not_before == NOW + 40
    window = RecoverySpec().window_seconds
    assert budget.judge(written, RecoverySpec(), NOW + window + 1, 0.5).recent == ()


def test_a_clock_that_is_a_little_behind_waits_a_little_longer_and_no_look_moves_it() -> None:
    late = [Restart(time=format_time(NOW + 30), reason="AppError")]
    for look in (NOW, NOW + 5):
        assert budget.judge(late, RecoverySpec(), look, 0.5).not_before == NOW + 35


def test_the_jitter_of_a_wait_is_the_same_at_each_look_and_not_the_same_for_all_units() -> None:
    values = {budget.jitter(f"uid-{number}", 3) for number in range(50)}
    assert len(values) > 40
    assert all(0 <= value < 1 for value in values)
    assert budget.jitter("uid-1", 3) == budget.jitter("uid-1", 3)
