"""In place or a new gang: by tables, and for any restarts of the past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import TWO_HOSTS as SPEC

from atoll_operator.api.learnerunit import LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import find
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.template_hash import digest
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import remedy
from atoll_operator.plan.unit.failure import Cause, Scope
from atoll_operator.plan.unit.hang import Pace
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.remedy import LIMIT, RENEWAL_SECONDS, Damage, Renewal
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_runtime.contract import EXIT_FENCED, EXIT_RESTART, EXIT_TERMINAL, INCARNATION_FILE, UnitReport
from atoll_runtime.learner.incarnation import MEMORY_FILE

NOW = 1_700_000_000.0
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
STATUS = LearnerUnitStatus(phase="Learning", incarnation=1, gang=1, placed_gang=1, merged_incarnation=1)
CRASH = {"exit_code": 1, "exit_message": "OSError: no", "ended_incarnation": 1, "finished_at": NOW - 1}


def make_pod(host: int = 0, **changes: Any) -> PodView:
    name = f"r-two-0-1-{host}"
    running = {
        "phase": "Running",
        "node": f"n{host}",
        "ready": True,
        "started_at": NOW - 9000,
        "incarnation": 1,
        "contract": digest(SETTINGS),
    }
    return PodView(name=name, uid=name, unit="r-two-0", gang=1, host=host, **(running | changes))


def make_unit(*pods: PodView, status: LearnerUnitStatus = STATUS, **changes: Any) -> UnitObserved:
    recovery = changes.pop("recovery", RecoverySpec())
    orders = Orders(stop="", finishing=False, recovery=recovery, settings=SETTINGS)
    values: dict[str, Any] = {
        "name": "r-two-0", "namespace": "ns", "uid": "u", "generation": 1, "spec": SPEC, "status": status,
        "pods": pods, "orders": orders,
    }  # fmt: skip
    return UnitObserved(**(values | changes))


def restarted(*seconds_ago: float, merged: int = 1) -> LearnerUnitStatus:
    """After restarts in place so long ago; the last incarnation that was merged."""
    times = [Restart(time=format_time(NOW - each), reason="AppError", in_place=True) for each in seconds_ago]
    return STATUS.model_copy(
        update={"incarnation": 1 + len(times), "restarts": tuple(times), "merged_incarnation": merged}
    )


def outcome(unit: UnitObserved) -> tuple[int, int, bool]:
    """Incarnation, gang, and whether its last restart was in place."""
    status = plan_unit(unit, NOW).status
    return status.incarnation, status.gang, bool(status.restarts and status.restarts[-1].in_place)


IN_PLACE, NEW_GANG, NOTHING = (2, 1, True), (2, 2, False), (1, 1, False)


@pytest.mark.parametrize(
    ("crash", "expected"),
    [
        pytest.param({}, IN_PLACE, id="error"),
        pytest.param({"exit_code": 137, "exit_reason": "OOMKilled", "exit_message": ""}, IN_PLACE, id="memory"),
        pytest.param({"exit_code": 137, "exit_message": ""}, IN_PLACE, id="killed"),
        pytest.param({"waiting": "CrashLoopBackOff", "started_at": None}, IN_PLACE, id="held-back"),
        pytest.param({"exit_code": EXIT_TERMINAL}, NEW_GANG, id="terminal"),
        pytest.param({"exit_code": EXIT_FENCED}, NEW_GANG, id="fenced"),
        pytest.param({"ended_incarnation": None}, NEW_GANG, id="before-its-own-code-ran"),
        pytest.param({"phase": "Failed"}, IN_PLACE, id="the-pod-failed"),
        pytest.param({"phase": "Succeeded", "exit_code": 0, "finished_at": NOW - 60}, IN_PLACE, id="exit-0"),
        pytest.param({"deletion_time": NOW + 30}, IN_PLACE, id="terminating"),
        pytest.param({"disruption": "PreemptionByScheduler"}, NEW_GANG, id="disrupted"),
        pytest.param({"exit_code": EXIT_RESTART}, NOTHING, id="made-room"),
        pytest.param({"ended_incarnation": 7}, NOTHING, id="of-another-incarnation"),
    ],
)  # fmt: skip
def test_what_became_of_one_container_decides(crash, expected) -> None:
    assert outcome(make_unit(make_pod(), make_pod(1, **(CRASH | crash)))) == expected


@pytest.mark.parametrize(
    ("other", "changes"),
    [
        pytest.param({"phase": "Pending", "started_at": None}, {}, id="has-not-started"),
        pytest.param({"disruption": "EvictionByEvictionAPI"}, {}, id="disrupted"),
        pytest.param(CRASH | {"exit_code": EXIT_TERMINAL, "finished_at": NOW}, {}, id="terminal-too"),
        pytest.param({}, {"nodes": {"n0": NodeView(name="n0", silent_since=NOW)}}, id="node-silent"),
        pytest.param({}, {"nodes": {"n0": NodeView(name="n0", gone=True)}}, id="node-gone"),
        pytest.param({}, {"nodes": {"n0": NodeView(name="n0", out_of_service=True)}}, id="node-off"),
        pytest.param({}, {"nodes": {"n0": NodeView(name="n0", maintenance="taint")}}, id="node-leaves"),
        pytest.param({}, {"recovery": RecoverySpec(in_place=False)}, id="not-wanted"),
        pytest.param(
            {}, {"report": UnitReport(incarnation=1, hosts=2, state="Gone"), "status": restarted()}, id="control"
        ),
    ],
)  # fmt: skip
def test_all_else_must_be_sound(other, changes) -> None:
    unit = make_unit(make_pod(**other), make_pod(1, **CRASH), **changes)
    assert outcome(unit) == (IN_PLACE if "report" in changes else NEW_GANG)


def test_a_gang_of_which_a_pod_is_missing_too_restarts_in_place() -> None:
    assert outcome(make_unit(make_pod(1, **CRASH))) == IN_PLACE


def test_a_unit_whose_name_others_use_gets_new_pods_above_their_incarnation() -> None:
    report = UnitReport(incarnation=7, hosts=2, state="Learning")
    assert outcome(make_unit(make_pod(), make_pod(1, **CRASH), report=report)) == (8, 8, False)


@pytest.mark.parametrize(
    ("ago", "merged", "expected"),
    [
        pytest.param((700,), 1, True, id="one-without-a-merge"),
        pytest.param((1400, 700), 1, False, id="two-without-a-merge"),
        pytest.param((1400, 700), 2, True, id="a-merge-between"),
        pytest.param((1400, 700), 3, True, id="a-merge-after"),
        pytest.param((300, 100), 3, False, id="two-in-ten-minutes"),
        pytest.param((900, 500), 3, False, id="a-chain-that-kubelets-remember"),
        pytest.param((1200, 500), 3, True, id="a-chain-that-they-forgot"),
    ],
)
def test_after_two_restarts_in_place_that_did_not_help_or_came_fast_a_new_gang_is_made(
    ago, merged, expected
) -> None:
    status = restarted(*ago, merged=merged)
    number = status.incarnation
    pods = (
        make_pod(incarnation=number),
        make_pod(1, incarnation=number, **CRASH | {"ended_incarnation": number}),
    )
    assert outcome(make_unit(*pods, status=status)) == (number + 1, 1 if expected else number + 1, expected)


@given(st.lists(st.floats(0, 4000), max_size=8), st.integers(0, 9))
def test_no_gang_restarts_in_place_thrice_without_a_merge_or_within_the_kubelets_memory(ago, merged) -> None:
    status = restarted(*sorted(ago, reverse=True), merged=min(merged, 1 + len(ago)))
    cause = Cause("AppError", "", "p", scope=Scope.PROCESS)
    if not remedy.in_place(cause, status, Damage(kept=(make_pod(),)), {}, 0, NOW):
        return
    times = [*(parse_time(item.time) for item in status.restarts), NOW]
    assert len(times) <= LIMIT or status.merged_incarnation > status.incarnation - LIMIT
    assert len(times) <= LIMIT or times[-1] - times[-1 - LIMIT] > remedy.KUBELET_MEMORY_SECONDS


def test_a_restart_in_place_is_in_the_status_before_any_pod_is_told() -> None:
    crashed = make_pod(1, **CRASH, started_at=NOW)
    first = plan_unit(make_unit(make_pod(), crashed), NOW)
    assert (first.advance, first.renew, first.create, first.remove) == (True, (), (), ())
    assert find(first.status.conditions, "PodsReady").status == "False"
    assert find(first.status.conditions, "Scheduled").status == "True"
    then = plan_unit(make_unit(make_pod(), crashed, status=first.status), NOW)
    assert then.renew == (Renewal("r-two-0-1-0", "r-two-0-1-0", 2), Renewal("r-two-0-1-1", "r-two-0-1-1", 2))
    assert (then.create, then.remove, then.status.gang) == ((), (), 1)
    told = [replace(pod, incarnation=2) for pod in (make_pod(), crashed)]
    assert plan_unit(make_unit(*told, status=first.status), NOW).renew == ()


def test_pods_are_not_ready_and_the_unit_heals_until_all_containers_restarted_and_it_merges() -> None:
    status = restarted(5)
    crashed = make_pod(1, **CRASH | {"started_at": NOW - 6, "incarnation": 2})
    status = status.model_copy(update={"heal_start_time": format_time(NOW - 6)})
    old = UnitReport(incarnation=1, hosts=2, state="Learning")
    half = plan_unit(
        make_unit(make_pod(incarnation=2), crashed, status=status, report=old, answering_since=NOW), NOW
    )
    ready = find(half.status.conditions, "PodsReady")
    assert (ready.status, ready.reason, half.status.phase) == ("False", "Restarting", "Healing")
    assert ready.message == "1 of 2 containers restarted in place"
    made_room = make_pod(incarnation=2, exit_code=EXIT_RESTART, ended_incarnation=1, started_at=NOW - 3)
    new = UnitReport(incarnation=2, hosts=2, state="Learning", seeded_step=9, first_merge_time=NOW)
    whole = make_unit(made_room, crashed, status=half.status, report=new, answering_since=NOW)
    plan = plan_unit(whole, NOW)
    assert (plan.status.phase, plan.status.merged_incarnation, plan.healed_seconds) == ("Learning", 2, 6.0)
    assert find(plan.status.conditions, "PodsReady").status == "True"


def test_a_process_that_does_not_end_for_its_successor_costs_the_gang() -> None:
    status = restarted(RENEWAL_SECONDS - 1)
    restarts = CRASH | {"incarnation": 2, "started_at": NOW - 80}
    stopped, other = make_pod(incarnation=2), make_pod(1, **restarts)
    plan = plan_unit(make_unit(stopped, other, status=status), NOW)
    assert (plan.advance, plan.wake) == (False, NOW + 1)
    late = plan_unit(make_unit(stopped, other, status=status), NOW + 1)
    assert (late.status.incarnation, late.status.gang) == (3, 3)
    failure = late.status.last_failure
    assert (failure.reason, failure.pod) == ("StartupTimedOut", "r-two-0-1-0")


def test_hosts_that_are_connected_have_restarted_whatever_their_pods_tell() -> None:
    pods = (make_pod(incarnation=2), make_pod(1, incarnation=2))
    report = UnitReport(incarnation=2, hosts=2, state="Joining")
    unit = make_unit(*pods, status=restarted(RENEWAL_SECONDS + 1), report=report, answering_since=NOW - 9000)
    plan = plan_unit(unit, NOW)
    assert not plan.advance
    assert find(plan.status.conditions, "PodsReady").status == "True"


def test_hosts_that_do_not_connect_after_a_restart_in_place_get_new_pods() -> None:
    recovery = RecoverySpec(startup_seconds=600)
    fresh = make_unit(
        make_pod(), make_pod(1), answering_since=NOW - 9000, recovery=recovery,
        status=STATUS.model_copy(update={"phase": "Joining"}),
    )  # fmt: skip
    assert outcome(fresh) == IN_PLACE
    held = {"waiting": "CrashLoopBackOff", "started_at": None, "incarnation": 2}
    pods = (make_pod(**CRASH | held), make_pod(1, **CRASH | held))
    waits = make_unit(*pods, answering_since=NOW - 9000, recovery=recovery, status=restarted(599))
    plan = plan_unit(waits, NOW)
    assert (plan.advance, plan.wake) == (False, NOW + 1)
    assert outcome(replace(waits, status=restarted(600))) == (3, 3, False)


def test_a_hang_is_mended_in_place_and_the_next_one_counts_from_its_own_steps() -> None:
    pace = Pace(incarnation=1, step=40, stepped=True, since=NOW - 601)
    report = UnitReport(incarnation=1, hosts=2, state="Learning", step=40, loss=3.0)
    unit = make_unit(make_pod(), make_pod(1), pace=pace, report=report, answering_since=NOW - 9000)
    assert outcome(unit) == IN_PLACE
    status = plan_unit(unit, NOW).status
    assert status.last_failure.reason == "Hang"
    assert not plan_unit(replace(unit, status=status), NOW).advance


def test_a_second_crash_of_one_pod_for_one_reason_is_told_as_its_own() -> None:
    first = plan_unit(make_unit(make_pod(), make_pod(1, **CRASH)), NOW).status
    pod = make_pod(1, **CRASH | {"ended_incarnation": 2, "incarnation": 2, "finished_at": NOW + 50})
    second = plan_unit(make_unit(make_pod(incarnation=2), pod, status=first), NOW + 51).status
    assert parse_time(second.last_failure.time) == NOW + 50
    assert second.heal_start_time == first.heal_start_time, "the unit was not merged between them"


def test_a_pod_reads_its_annotation_where_its_process_looks_for_it() -> None:
    made = plan_unit(make_unit(status=LearnerUnitStatus(incarnation=3, gang=3)), NOW).create[0]
    assert made["metadata"]["annotations"]["atoll.dev/incarnation"] == "3"
    assert made["spec"]["restartPolicy"] == "OnFailure"
    mounts = {mount["name"]: mount["mountPath"] for mount in made["spec"]["containers"][0]["volumeMounts"]}
    volume = next(item for item in made["spec"]["volumes"] if "downwardAPI" in item)
    (file,) = volume["downwardAPI"]["items"]
    assert f"{mounts[volume['name']]}/{file['path']}" == INCARNATION_FILE
    assert file["fieldRef"]["fieldPath"] == "metadata.annotations['atoll.dev/incarnation']"
    assert MEMORY_FILE.startswith(f"{mounts['tmp']}/"), "what it keeps outlives its container"


def test_a_restart_is_told_with_how_it_comes_back() -> None:
    plan = plan_unit(make_unit(make_pod(), make_pod(1, **CRASH)), NOW)
    assert [notice.reason for notice in plan.notices] == ["OSError", "RestartInPlace"]
    lost = plan_unit(make_unit(make_pod(phase="Pending"), make_pod(1, phase="Failed", exit_code=1)), NOW)
    assert [notice.reason for notice in lost.notices] == ["AppError", "NewGang"]
