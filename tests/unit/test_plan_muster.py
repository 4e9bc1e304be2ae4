"""Pods that are lost while their hosts are sound are made anew there, and the others of the gang stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from objects import TWO_HOSTS as SPEC

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import find
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.template_hash import digest
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.removal import Removal
from atoll_operator.plan.unit.placement import RETURN_SECONDS
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.remedy import AFTERSHOCK_SECONDS, RENEWAL_SECONDS
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_operator.plan.unit.unitplan import UnitPlan
from atoll_runtime.contract import EXIT_FENCED, EXIT_TERMINAL, UnitReport

NOW = 1_700_000_000.0
WIDE = SPEC.model_copy(update={"topology": "4x4", "machine_type": None})  # four hosts
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
STATUS = LearnerUnitStatus(phase="Learning", incarnation=3, gang=3, placed_gang=3, merged_incarnation=3)
NODES = {
    f"n{host}": NodeView(name=f"n{host}", pool="a", kind=(SPEC.accelerator, "4x4"), chips=4)
    for host in range(4)
}
FAILED = {"phase": "Failed", "exit_code": 1, "finished_at": NOW - 1}
DELETED = {"deletion_time": NOW + 30}


def make_pod(host: int, **changes: Any) -> PodView:
    running = {
        "phase": "Running", "node": f"n{host}", "ready": True, "started_at": NOW - 9000, "incarnation": 3,
        "made_for": 3, "contract": digest(SETTINGS),
        "pool": "a" if host else "", "scheduled_at": NOW - 9000,
    }  # fmt: skip
    values = running | changes
    name = f"r-two-0-{values['made_for']}-{host}"
    return PodView(name=name, uid=name, unit="r-two-0", gang=3, host=host, **values)


def gang(**lost: dict[str, Any]) -> tuple[PodView, ...]:
    """Of four pods: what became of those of these hosts."""
    return tuple(make_pod(host, **lost.get(f"h{host}", {})) for host in range(4))


def make_unit(*pods: PodView, status: LearnerUnitStatus = STATUS, **changes: Any) -> UnitObserved:
    recovery = changes.pop("recovery", RecoverySpec())
    values: dict[str, Any] = {
        "name": "r-two-0", "namespace": "ns", "uid": "u", "generation": 1, "spec": WIDE, "status": status,
        "pods": pods, "nodes": NODES, "sees_nodes": True, "answering_since": NOW - 9000,
        "orders": Orders(stop="", finishing=False, recovery=recovery, settings=SETTINGS),
    }  # fmt: skip
    return UnitObserved(**(values | changes))


def made(plan: UnitPlan) -> list[str]:
    return [pod["metadata"]["name"] for pod in plan.create]


def how(plan: UnitPlan) -> tuple[int, int, int]:
    """Incarnation, gang, and how many pods its restart made anew."""
    return plan.status.incarnation, plan.status.gang, plan.status.restarts[-1].replaced


def test_a_pod_that_failed_is_made_anew_and_the_others_stay_and_are_told() -> None:
    pods = gang(h2=FAILED)
    decided = plan_unit(make_unit(*pods), NOW)
    assert decided.advance
    assert how(decided) == (4, 3, 1)
    assert (decided.remove, decided.create, decided.renew) == ((), (), ())
    assert "1 of 4 pods are made anew" in decided.notices[-1].message

    makes = plan_unit(make_unit(*pods, status=decided.status), NOW)
    assert makes.remove == (Removal("r-two-0-3-2", "r-two-0-3-2", 0),)
    assert made(makes) == ["r-two-0-4-2"]
    assert [(told.name, told.incarnation) for told in makes.renew] == [
        (f"r-two-0-3-{host}", 4) for host in (0, 1, 3)
    ]
    annotations = makes.create[0]["metadata"]["annotations"]
    assert annotations["atoll.dev/incarnation"] == annotations["atoll.dev/made-for-incarnation"] == "4"
    assert find(makes.status.conditions, "Scheduled").message == "3 of 4 pods have a node"

    kept_by_somebody = replace(pods[2], deletion_time=NOW)
    whole = [*(replace(pod, incarnation=4) for pod in pods if pod.host != 2), kept_by_somebody]
    whole.append(make_pod(2, incarnation=4, made_for=4, node="", phase="Pending", started_at=None))
    placed = plan_unit(make_unit(*whole, status=makes.status), NOW)
    assert (placed.status.placed_gang, placed.advance) == (3, False)
    assert (placed.create, placed.remove, placed.renew) == ((), (), ())


def test_names_and_addresses_of_a_pod_made_anew_are_those_its_peers_know() -> None:
    pods = gang(h0=FAILED)
    status = plan_unit(make_unit(*pods), NOW).status
    first = plan_unit(make_unit(status=STATUS.model_copy(update={"placed_gang": 0})), NOW).create[0]
    (again,) = plan_unit(make_unit(*pods, status=status), NOW).create
    assert again["metadata"]["name"] == "r-two-0-4-0"
    for field in ("hostname", "subdomain"):
        assert again["spec"][field] == first["spec"][field]
    assert again["spec"]["containers"][0]["env"] == first["spec"]["containers"][0]["env"]
    assert again["metadata"]["labels"] == first["metadata"]["labels"]


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        pytest.param({"h1": FAILED}, (4, 3, 1), id="failed"),
        pytest.param({"h1": FAILED | {"exit_code": 137, "exit_reason": "OOMKilled"}}, (4, 3, 1), id="memory"),
        pytest.param({"h1": {"phase": "Succeeded", "exit_code": 0, "finished_at": NOW - 60}}, (4, 3, 1), id="exit-0"),
        pytest.param({"h1": DELETED}, (4, 3, 1), id="deleted"),
        pytest.param({"h0": FAILED, "h1": DELETED, "h3": FAILED}, (4, 3, 3), id="all-but-one"),
        pytest.param({"h1": FAILED, "h2": {"exit_code": 1, "ended_incarnation": 3}}, (4, 3, 1), id="and-a-crash"),
        pytest.param({f"h{host}": FAILED for host in range(4)}, (4, 4, 0), id="all"),
        pytest.param({"h1": FAILED | {"exit_code": EXIT_TERMINAL}}, (4, 4, 0), id="terminal"),
        pytest.param({"h1": FAILED | {"exit_code": EXIT_FENCED}}, (4, 4, 0), id="fenced"),
        pytest.param({"h1": {"phase": "Failed", "reason": "Evicted"}}, (4, 4, 0), id="evicted"),
        pytest.param({"h1": {"phase": "Failed", "reason": "OutOfgoogle.com/tpu"}}, (4, 4, 0), id="rejected"),
        pytest.param({"h1": {"phase": "Failed"}}, (4, 4, 0), id="failed-without-a-word"),
        pytest.param({"h1": DELETED | {"disruption": "DeletionByTaintManager"}}, (4, 4, 0), id="lost-node"),
        pytest.param({"h1": DELETED | {"disruption": "EvictionByEvictionAPI"}}, (4, 4, 0), id="drained"),
        pytest.param({"h1": DELETED | {"disruption": "PreemptionByScheduler"}}, (4, 4, 0), id="preempted"),
        pytest.param({"h1": DELETED | {"disruption": "SomethingNew"}}, (4, 4, 0), id="disrupted"),
        pytest.param({"h1": FAILED, "h2": {"phase": "Pending"}}, (4, 4, 0), id="another-has-not-started"),
    ],
)  # fmt: skip
def test_why_its_pods_are_lost_decides(lost, expected) -> None:
    assert how(plan_unit(make_unit(*gang(**lost)), NOW)) == expected


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param({"cordoned": True}, (4, 4, 0), id="cordoned"),
        pytest.param({"silent_since": NOW - 1}, (4, 4, 0), id="silent"),
        pytest.param({"gone": True}, (4, 4, 0), id="gone"),
        pytest.param({"out_of_service": True}, (4, 4, 0), id="off"),
    ],
)
def test_only_a_host_that_stays_gets_another_pod(node: dict[str, bool | float], expected) -> None:
    nodes = NODES | {"n1": replace(NODES["n1"], **node)}
    assert how(plan_unit(make_unit(*gang(h1=FAILED), nodes=nodes), NOW)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"recovery": RecoverySpec(in_place=False)}, (4, 4, 0), id="not-wanted"),
        pytest.param({"spec": WIDE.model_copy(update={"queue_name": "q"})}, (4, 4, 0), id="in-a-queue"),
        pytest.param({"nodes": {}, "sees_nodes": False}, (4, 3, 1), id="nodes-are-not-seen"),
    ],
)
def test_who_asks_decides(changes, expected) -> None:
    assert how(plan_unit(make_unit(*gang(h1=FAILED), **changes), NOW)) == expected


@pytest.mark.parametrize(
    ("last", "chips", "expected"),
    [
        pytest.param(DELETED, 16, (4, 3, 1), id="deleted"),
        pytest.param({}, 16, (4, 3, 1), id="without-a-word"),
        pytest.param({}, 12, (4, 4, 0), id="without-a-word-from-a-pool-that-lacks-a-host"),
        pytest.param(DELETED | {"disruption": "DeletionByPodGC"}, 16, (4, 4, 0), id="with-its-node"),
        pytest.param(None, 16, (4, 3, 1), id="never-seen"),
        pytest.param(None, 12, (4, 4, 0), id="never-seen-of-a-pool-that-lacks-a-host"),
    ],
)
def test_a_pod_that_is_gone_is_judged_by_the_last_that_was_seen_of_it_and_by_its_pool(
    last, chips, expected
) -> None:
    departed = {} if last is None else {1: make_pod(1, **last)}
    left = [pod for pod in gang() if pod.host != 1]
    plan = plan_unit(make_unit(*left, departed=departed, sound_chips={"a": chips, "b": 0}), NOW)
    assert plan.doubtful, "a watch that lags would say the same"
    assert how(plan) == expected


def test_a_deleted_pod_is_hurried_and_the_others_restart_meanwhile() -> None:
    pods = gang(h1=DELETED | {"deletion_time": NOW + 60})
    status = plan_unit(make_unit(*pods), NOW).status
    plan = plan_unit(make_unit(*pods, status=status), NOW)
    assert plan.remove == (Removal("r-two-0-3-1", "r-two-0-3-1", 1),)
    assert (plan.create, len(plan.renew)) == ((), 3)


def test_the_last_of_a_gang_that_is_gone_says_nothing_of_this_one() -> None:
    old = replace(make_pod(1, **DELETED), gang=2, name="r-two-0-2-1", made_for=2)
    plan = plan_unit(make_unit(*(pod for pod in gang() if pod.host != 1), departed={1: old}), NOW)
    assert (how(plan), plan.status.last_failure.pod) == ((4, 3, 1), "r-two-0-3-1")


def test_a_pod_that_does_not_end_costs_the_gang() -> None:
    pods = gang(h1=DELETED | {"deletion_time": NOW + 1})
    status = plan_unit(make_unit(*pods), NOW).status
    told = [replace(pod, incarnation=pod.incarnation if pod.host == 1 else 4) for pod in pods]
    told = [replace(pod, exit_code=66, ended_incarnation=3) if pod.host != 1 else pod for pod in told]
    waits = plan_unit(make_unit(*told, status=status), NOW + RENEWAL_SECONDS - 1)
    assert (waits.advance, waits.create) == (False, ())
    late = plan_unit(make_unit(*told, status=status), NOW + RENEWAL_SECONDS)
    assert (late.status.incarnation, late.status.gang) == (5, 5)
    assert (late.status.last_failure.reason, late.status.last_failure.pod) == (
        "StartupTimedOut",
        "r-two-0-3-1",
    )


def repaired(**changes: Any) -> tuple[list[PodView], LearnerUnitStatus]:
    """A gang whose second pod was made anew; the others have restarted."""
    status = plan_unit(make_unit(*gang(h1=FAILED)), NOW).status.model_copy(update={"placed_gang": 3})
    restarted = {"incarnation": 4, "exit_code": 66, "ended_incarnation": 3, "started_at": NOW}
    new = {"incarnation": 4, "made_for": 4, "phase": "Pending", "ready": False, "started_at": None}
    pods = gang(**dict.fromkeys(("h0", "h2", "h3"), restarted), h1=new | changes)
    return list(pods), status


def test_a_pod_made_anew_that_has_no_host_costs_the_gang_after_a_while() -> None:
    unplaced = {"node": "", "unschedulable": "0/4 nodes", "unschedulable_since": NOW, "scheduled_at": None}
    pods, status = repaired(**unplaced)
    waits = plan_unit(make_unit(*pods, status=status), NOW + RETURN_SECONDS - 1)
    assert (waits.advance, waits.wake) == (False, NOW + RETURN_SECONDS)
    late = plan_unit(make_unit(*pods, status=status), NOW + RETURN_SECONDS)
    assert (late.status.incarnation, late.status.gang) == (5, 5)
    assert late.status.restarts[-1].reason == "CapacityUnavailable"


def test_a_pod_made_anew_has_the_time_of_any_new_pod_to_start_and_its_own_clock_is_not_asked() -> None:
    recovery = RecoverySpec(startup_seconds=600)
    pods, status = repaired(scheduled_at=NOW)
    slow = plan_unit(make_unit(*pods, status=status, recovery=recovery), NOW + 599)
    assert (slow.advance, slow.wake) == (False, NOW + 600)
    late = plan_unit(make_unit(*pods, status=status, recovery=recovery), NOW + 600).status
    assert (late.gang, late.last_failure.reason, late.last_failure.pod) == (
        5,
        "StartupTimedOut",
        "r-two-0-4-1",
    )
    pods, status = repaired(phase="Running", ready=True, started_at=NOW - 30)  # by a clock that is behind
    runs = plan_unit(make_unit(*pods, status=status), NOW + RENEWAL_SECONDS + 1)
    assert (runs.advance, find(runs.status.conditions, "PodsReady").status) == (False, "True")


def test_hosts_that_are_connected_are_no_gang_while_one_is_not_there() -> None:
    """What those that stayed do before the last is there says nothing of the whole."""
    pods, status = repaired()
    report = UnitReport(incarnation=4, hosts=3, state="Joining")
    unplaced = status.model_copy(update={"placed_gang": 0})
    left = [pod for pod in pods if pod.host != 1]
    plan = plan_unit(make_unit(*left, status=unplaced, report=report), NOW)
    assert made(plan) == ["r-two-0-4-1"]
    assert find(plan.status.conditions, "PodsReady").status == "False"


def test_a_pod_that_is_lost_before_the_gang_is_whole_is_made_anew_too() -> None:
    pods = gang(h1=FAILED)
    status = plan_unit(make_unit(*pods), NOW).status
    for incarnation in (3, 4):  # whether it was told or not
        lost = {"incarnation": incarnation, **FAILED}
        also = [replace(pod, **lost) if pod.host == 2 else pod for pod in pods]
        plan = plan_unit(make_unit(*also, status=status), NOW + 60)
        assert {removal.name for removal in plan.remove} == {"r-two-0-3-1", "r-two-0-3-2"}
        assert made(plan) == ["r-two-0-4-1", "r-two-0-4-2"]


def test_a_pod_that_is_lost_with_its_host_before_the_gang_is_whole_costs_it() -> None:
    pods = gang(h1=FAILED)
    status = plan_unit(make_unit(*pods), NOW).status
    nodes = NODES | {"n2": replace(NODES["n2"], silent_since=NOW)}
    gone = [replace(pod, **DELETED) if pod.host == 2 else pod for pod in pods]
    plan = plan_unit(make_unit(*gone, status=status, nodes=nodes), NOW + 60)
    assert (plan.status.incarnation, plan.status.gang) == (5, 5)


def test_a_third_loss_before_a_merge_makes_a_new_gang() -> None:
    status, now = STATUS, NOW
    for expected in ((4, 3), (5, 3), (6, 6)):
        pods = [replace(pod, incarnation=status.incarnation) for pod in gang(h1=FAILED)]
        status = plan_unit(make_unit(*pods, status=status), now).status
        assert (status.incarnation, status.gang) == expected
        status = status.model_copy(update={"placed_gang": status.gang})
        now += 700
    assert format_time(now) > status.restarts[0].time


def placed_again(**lost: dict[str, Any]) -> tuple[tuple[PodView, ...], LearnerUnitStatus]:
    """A gang whose second pod was made anew; all were told, and none has restarted yet."""
    status = plan_unit(make_unit(*gang(h1=FAILED)), NOW).status.model_copy(update={"placed_gang": 3})
    new = {"incarnation": 4, "made_for": 4, "phase": "Pending", "started_at": None}
    told = {f"h{host}": {"incarnation": 4, **lost.get(f"h{host}", {})} for host in (0, 2, 3)}
    return gang(h1=new | lost.get("h1", {}), **told), status


@pytest.mark.parametrize("kind", [FAILED, DELETED], ids=["failed", "deleted"])
def test_what_is_lost_within_moments_is_lost_together_at_the_cost_of_one_restart(kind) -> None:
    pods, status = placed_again(h2=kind)
    plan = plan_unit(make_unit(*pods, status=status), NOW + AFTERSHOCK_SECONDS)
    assert plan.advance
    assert (plan.status.incarnation, plan.status.gang, plan.status.placed_gang) == (4, 3, 0)
    assert (plan.status.restart_count, len(plan.status.restarts)) == (1, 1)
    then = plan_unit(make_unit(*pods, status=plan.status), NOW + AFTERSHOCK_SECONDS)
    assert not then.advance
    assert [removal.name for removal in then.remove] == ["r-two-0-3-2"]
    assert made(then) == (["r-two-0-4-2"] if kind is FAILED else [])
    whole = [replace(pod, made_for=4, incarnation=4) if pod.host in (1, 2) else pod for pod in gang()]
    placed = plan_unit(make_unit(*whole, status=plan.status), NOW + AFTERSHOCK_SECONDS)
    assert how(placed) == (4, 3, 2)


@pytest.mark.parametrize(
    ("lost", "changes", "seconds"),
    [
        pytest.param({"h2": FAILED}, {}, AFTERSHOCK_SECONDS + 1, id="later"),
        pytest.param({"h1": FAILED}, {}, 2, id="the-one-that-was-made-anew"),
        pytest.param({"h2": FAILED | {"ended_incarnation": 4}}, {}, 2, id="after-it-had-restarted"),
        pytest.param({"h2": DELETED | {"ended_incarnation": 3}}, {}, 2, id="while-it-may-run-as-this-incarnation"),
        pytest.param({"h2": FAILED}, {"recovery": RecoverySpec(in_place=False)}, 2, id="not-wanted"),
        pytest.param({"h2": FAILED}, {"spec": WIDE.model_copy(update={"queue_name": "q"})}, 2, id="in-a-queue"),
        pytest.param({"h2": FAILED | {"made_for": 0}}, {}, 2, id="of-another-operator"),
        pytest.param({"h2": {"exit_code": 1, "ended_incarnation": 4}}, {}, 2, id="a-process"),
        pytest.param({"h2": FAILED, "h3": {"disruption": "EvictionByEvictionAPI"}}, {}, 2, id="another-is-drained"),
        pytest.param(
            {"h2": FAILED}, {"report": UnitReport(incarnation=4, hosts=4, state="Joining")}, 2, id="connected"
        ),
    ],
)  # fmt: skip
def test_another_loss_is_a_failure_of_its_own(lost, changes, seconds) -> None:
    pods, status = placed_again(**lost)
    plan = plan_unit(make_unit(*pods, status=status, **changes), NOW + seconds)
    assert plan.status.restarts[0].replaced == 1
    backs_off = find(plan.status.conditions, "Healing").reason == "BackOff"
    assert backs_off or plan.status.incarnation == 5


def test_pods_of_one_gang_are_made_of_the_same_image_and_environment() -> None:
    unit = make_unit(*gang(h1=FAILED))
    assert unit.orders is not None
    new = replace(unit.orders, settings=replace(SETTINGS, image="runtime:new"))
    assert how(plan_unit(replace(unit, orders=new), NOW)) == (4, 4, 0)
    alone = make_unit(*gang(h1={"exit_code": 1, "ended_incarnation": 3}), orders=new)
    assert how(plan_unit(alone, NOW)) == (4, 3, 0), "where none is made anew all stay as they are"
    (pod, *_) = plan_unit(make_unit(status=STATUS.model_copy(update={"placed_gang": 0})), NOW).create
    assert view(pod).contract == digest(SETTINGS)


def test_a_slice_that_is_lost_as_a_whole_costs_the_gang_for_it_may_be_anywhere_next() -> None:
    spec = SPEC.model_copy(update={"slices": 2})  # of two hosts each
    assert how(plan_unit(make_unit(*gang(h3=FAILED), spec=spec), NOW)) == (4, 3, 1)
    assert how(plan_unit(make_unit(*gang(h2=FAILED, h3=FAILED), spec=spec), NOW)) == (4, 4, 0)
    status = plan_unit(make_unit(*gang(h3=FAILED), spec=spec), NOW).status
    more = plan_unit(make_unit(*gang(h2=FAILED, h3=FAILED), spec=spec, status=status), NOW + 60)
    assert (more.status.incarnation, more.status.gang) == (5, 5)


def test_a_pod_that_is_lost_after_its_hosts_met_is_a_failure_though_the_status_was_never_written() -> None:
    pods, status = repaired(phase="Running", ready=True, started_at=NOW, incarnation=4)
    unplaced = status.model_copy(update={"placed_gang": 0})
    lost = [replace(pod, **DELETED) if pod.host == 2 else pod for pod in pods]
    report = UnitReport(incarnation=4, hosts=4, state="Learning")
    plan = plan_unit(make_unit(*lost, status=unplaced, report=report), NOW + 60)
    assert (plan.status.incarnation, plan.status.restart_count) == (5, 2)


def test_pods_of_an_operator_that_did_not_number_them_are_of_their_gangs_incarnation() -> None:
    (pod, *_) = plan_unit(make_unit(status=STATUS.model_copy(update={"placed_gang": 0})), NOW).create
    del pod["metadata"]["annotations"]["atoll.dev/made-for-incarnation"]
    assert view(pod).made_for == 3


def test_a_first_gang_waits_for_a_host_that_another_pod_has() -> None:
    unplaced = {"node": "", "phase": "Pending", "unschedulable": "0/4", "unschedulable_since": NOW - 600}
    plan = plan_unit(make_unit(*gang(h3={**unplaced, "started_at": None})), NOW)
    assert not plan.advance


def test_what_is_left_of_a_pod_that_was_made_anew_goes() -> None:
    pods, status = repaired(phase="Running", ready=True, started_at=NOW)
    plan = plan_unit(make_unit(*pods, make_pod(1, **FAILED), status=status), NOW)
    assert [removal.name for removal in plan.remove] == ["r-two-0-3-1"]
    assert plan.create == ()


def test_those_that_stay_are_not_given_up_while_the_api_server_takes_no_pod() -> None:
    pods, status = repaired()
    left = [pod for pod in pods if pod.host != 1]
    unplaced = status.model_copy(update={"placed_gang": 0})
    plan = plan_unit(make_unit(*left, status=unplaced), NOW + 100_000)
    assert (plan.advance, made(plan)) == (False, ["r-two-0-4-1"])
