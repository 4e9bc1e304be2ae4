"""What the operator does with one unit in one pass, beyond the failures that are played in the memory world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_kinds import all_pods, learner_unit
from run_scene import NOW

from atoll_operator.api.learnerunit import Failure, LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import find, format_time, parse_time, state, transition
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods import names
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit import deadlines
from atoll_operator.plan.unit.incarnation import budget_of, jitter
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import Pace, UnitObserved, UnitPlan
from atoll_operator.plan.unit.waiting import waiting
from atoll_runtime import contract
from atoll_runtime.learner.incarnation import MEMORY_FILE

HURT: dict[str, Any] = {
    "heal_start_time": format_time(NOW - 30), "heal_reason": "AppError",
    "last_failure": Failure(reason="OSError", pod="r-two-0-3-1", time=format_time(NOW - 30)),
}  # fmt: skip
"""A heal is under way, whose last failure was one of host 1."""


def status(phase: str = "Learning", met: bool = True, **changes: Any) -> LearnerUnitStatus:
    states = {"Scheduled": state(True, "Scheduled"), "Seeded": state(met, "Checkpoint")}
    values: dict[str, Any] = {
        "incarnation": 3,
        "placement": 3,
        "chips": 8,
        "observed_generation": 1,
        "phase": phase,
    }
    return LearnerUnitStatus(**(values | {"conditions": transition((), states, 1, NOW)} | changes))


def pod(host: int, **changes: Any) -> PodView:
    """A pod of the third incarnation, whose container runs."""
    contract = learner_unit().contract
    values: dict[str, Any] = {
        "name": f"r-two-0-3-{host}", "uid": f"{host}", "placement": 3, "made_for": 3, "incarnation": 3, "host": host,
        "contract": contract, "phase": "Running", "node": f"n-{host}", "scheduled_at": NOW - 900,
        "started_at": NOW - 900, "ready": True,
    }  # fmt: skip
    return PodView(**(values | changes))


ENDED = {"phase": "Failed", "exit_code": 1, "exit_message": "OSError: no", "finished_at": NOW}
FAILED = pod(1, **ENDED)
TOLD = contract.UnitReport(
    incarnation=3, hosts=2, state="Learning", step=40, loss=3.5, first_merge_time=NOW - 60, seeded_step=40
)


def syncer(**changes: Any) -> SyncerState:
    units = {"r-two-0": TOLD.model_copy(update=changes)}
    return SyncerState().heard(contract.SyncerStatus(run_uid="u", phase="Running", units=units), NOW)


def unit(*pods: PodView, **changes: Any) -> UnitObserved:
    """A unit that learns since `NOW`, by default with both of its pods."""
    values: dict[str, Any] = {
        "pods": pods or (pod(0), pod(1)), "status": status(), "syncer": replace(syncer(), answering_since=NOW - 9e3),
        "pace": Pace(3, 40, True, NOW), "nodes": {f"n-{host}": NodeView(name=f"n-{host}") for host in (0, 1)},
    }  # fmt: skip
    return replace(learner_unit(), **(values | changes))


def told(plan: UnitPlan, name: str) -> tuple[str, str]:
    found = find(plan.status.conditions, name)
    return found.status, found.reason


def test_pods_of_a_new_unit_do_not_wait_until_its_first_incarnation_is_stored() -> None:
    new = replace(unit(), status=LearnerUnitStatus(), pods=(), syncer=SyncerState())
    leader = pod(0, placement=1, incarnation=1, made_for=1, ready=False)
    for there, created in (((), 1), ((leader,), 1), ((leader, replace(leader, host=1)), 0)):
        plan = plan_unit(replace(new, pods=there))
        assert (plan.advance, plan.remove, len(plan.create)) == (False, (), created)
        assert plan.service["spec"]["publishNotReadyAddresses"], (
            "they look for each other before they are ready"
        )
    failed = plan_unit(replace(new, pods=(replace(leader, **ENDED),)))
    assert (failed.advance, failed.status.incarnation, failed.status.restart_count) == (True, 2, 1)


@pytest.mark.parametrize(
    ("other", "incarnation"),
    [
        pytest.param({"owned": False}, 1, id="made by hand"),
        pytest.param({"generation": 2}, 1, id="its spec has changed"),
        pytest.param({"syncer": syncer()}, 4, id="an earlier unit had this name"),
        pytest.param(
            {"syncer": replace(syncer(), status=None, deleted={"r-two-0": 3})}, 4, id="a deleted one had it"
        ),
        pytest.param({"status": LearnerUnitStatus(phase="Suspended")}, 2, id="it may have had pods before"),
    ],
)
def test_a_unit_stores_an_incarnation_first_that_does_not_follow_from_its_spec(
    other: dict[str, Any], incarnation: int
) -> None:
    new = replace(unit(), status=LearnerUnitStatus(), pods=(), syncer=SyncerState())
    plan = plan_unit(replace(new, **other))
    assert (plan.advance, plan.create, plan.status.incarnation) == (True, (), incarnation)


def test_pods_that_are_newer_than_the_status_are_left_alone() -> None:
    """Another operator raised the incarnation, and this one has seen the new pods alone. Its write will be refused."""
    newer = [pod(host, placement=4, made_for=4, incarnation=4) for host in (0, 1)]
    plan = plan_unit(unit(*newer, status=status("Healing", met=False), syncer=SyncerState()))
    assert (plan.advance, plan.create, plan.remove, plan.renew) == (True, (), (), ())


def test_a_changed_spec_makes_the_next_incarnation_and_sound_pods_have_time_to_end() -> None:
    plan = plan_unit(unit(generation=2))
    assert (plan.status.incarnation, plan.status.placement, plan.status.restart_count) == (4, 4, 0)
    assert {each.grace_seconds for each in plan_unit(unit(generation=2, status=plan.status)).remove} == {60}


@pytest.mark.parametrize("stop", ["Suspended", "Finished", "RunNotFound"])
@pytest.mark.parametrize("heal", [{}, HURT], ids=["sound", "hurt"])
def test_a_unit_whose_pods_were_taken_away_comes_back_without_a_failure(
    stop: Any, heal: dict[str, Any]
) -> None:
    stopped = plan_unit(unit(stop=stop, status=status(**heal)))
    assert len(stopped.remove) == 2 and told(stopped, "Scheduled") == ("False", stop)
    assert (stopped.status.heal_start_time, stopped.status.lost is not None) == (None, bool(heal))
    later = unit(pod(0, phase="Failed"), stop=stop, status=stopped.status)
    assert plan_unit(later).status.lost == stopped.status.lost, "once"
    again = plan_unit(replace(later, stop="", pods=())).status
    assert (again.incarnation, again.placement, again.restarts, again.heal_start_time) == (4, 4, (), None)


def test_a_suspension_waits_for_no_pod_of_a_lost_node_and_for_none_that_has_ended() -> None:
    silent = {"n-1": NodeView(name="n-1", silent_since=NOW)}
    waits = unit(pod(1, deletion_time=NOW + 60), nodes=silent, stop="Suspended")
    assert plan_unit(waits).wake == NOW + 3
    kept_by_a_finalizer = pod(1, deletion_time=NOW, phase="Succeeded")
    over = replace(waits, now=NOW + 3), unit(kept_by_a_finalizer, stop="Suspended")
    assert [told(plan_unit(each), "Draining")[0] for each in (waits, *over)] == ["True", "False", "False"]


def test_a_unit_that_cannot_be_made_says_why_and_does_nothing() -> None:
    impossible = learner_unit().spec.model_copy(update={"topology": "3x3"})
    plan = plan_unit(unit(spec=impossible, status=LearnerUnitStatus()))
    assert told(plan, "Scheduled") == ("False", "SpecInvalid") and "topology" in plan.status.message
    assert (plan.advance, plan.create) == (False, ())


def test_an_exhausted_budget_is_final_until_it_grows_or_the_spec_changes() -> None:
    none = RecoverySpec(max_restarts=0)
    lost = plan_unit(unit(pod(0), FAILED, recovery=none, status=status(**HURT))).status
    assert lost.phase == "Failed" and "Delete this LearnerUnit" in lost.message
    assert lost.lost is not None and lost.lost.by_reason["AppError"].seconds == 30.0
    failed = unit(pod(0), FAILED, recovery=none, status=lost, now=NOW + 1e6)
    plan = plan_unit(failed)
    assert [each.name for each in plan.remove] == ["r-two-0-3-0"], "what failed can be looked at"
    assert (plan.status, plan.wake) == (lost, None)
    spent = lost.model_copy(update={"restarts": restarts(1)})
    changed = plan_unit(replace(failed, status=spent, generation=2)).status
    assert (changed.incarnation, changed.restarts) == (4, ())
    tried = plan_unit(replace(failed, recovery=RecoverySpec(max_restarts=1))).status
    assert (tried.phase, tried.incarnation, tried.restart_count) == ("Pending", 4, 1)


def test_what_fails_again_before_a_merge_is_another_failure_and_one_heal() -> None:
    plan = plan_unit(unit(pod(0), FAILED, status=status("Healing", **HURT)))
    assert (plan.status.heal_reason, plan.status.heal_start_time) == ("AppError", HURT["heal_start_time"])
    failure = plan.status.last_failure
    assert failure is not None and (failure.reason, parse_time(failure.time)) == ("OSError", NOW)
    assert [notice.reason for notice in plan.notices] == ["OSError", "RestartInPlace"]
    waits = transition((), {"Healing": state(True, "BackOff")}, 1, NOW)
    told = plan_unit(unit(pod(0), FAILED, status=status("Healing", conditions=waits, **HURT)))
    assert told.status.last_failure.time == HURT["last_failure"].time, (
        "it is the one that waits for its next try"
    )


@pytest.mark.parametrize(
    ("changes", "reason", "placement"),
    [
        ({}, "OSError", 3),
        ({"exit_code": 64}, "OSError", 4),
        ({"disruption": "PreemptionByScheduler"}, "Preempted", 4),
    ],
)
def test_a_unit_in_its_back_off_makes_no_pod_and_knows_its_failure_though_the_pod_is_gone(
    changes: dict[str, Any], reason: str, placement: int
) -> None:
    alone, failed = learner_unit(topology="2x2").spec, pod(0, **(ENDED | changes))
    waits = plan_unit(unit(failed, spec=alone, status=status(restarts=restarts(5)))).status
    away = replace(unit(spec=alone, syncer=syncer(hosts=0, state="Gone"), now=NOW + 1), pods=())
    plan = plan_unit(replace(away, status=waits))
    assert (plan.create, plan.status.incarnation, plan.status.last_failure) == ((), 3, waits.last_failure)
    assert plan.wake is not None
    again = plan_unit(replace(away, status=plan.status, now=plan.wake)).status
    assert (again.incarnation, again.placement, again.restarts[-1].reason) == (4, placement, reason)


def test_a_suspect_unit_does_not_return_to_a_host_whose_pod_has_ended_during_its_back_off() -> None:
    alone = learner_unit(topology="2x2").spec
    suspect = unit(
        pod(0), spec=alone, syncer=syncer(suspect="8 refused"), status=status(restarts=restarts(5))
    )
    waits = plan_unit(suspect).status
    assert find(waits.conditions, "Healing").reason == "BackOff"
    evicted = unit(pod(0, phase="Failed", reason="Evicted", finished_at=NOW + 60), spec=alone)
    again = plan_unit(replace(evicted, status=waits, now=NOW + 3600)).status
    assert (again.restarts[-1].reason, again.restarts[-1].avoid) == ("Suspect", (pod(0).node,))


@pytest.mark.parametrize("met", [True, False])
def test_a_pod_that_did_not_say_that_it_ran_fails_again_only_if_the_hosts_have_met(met: bool) -> None:
    healing = status("Healing", met=met, incarnation=4, **HURT)
    assert plan_unit(unit(pod(0), replace(FAILED, exit_message=""), status=healing)).advance is met


def test_a_pod_is_replaced_in_its_place_also_where_the_operator_may_not_see_nodes() -> None:
    assert plan_unit(unit(pod(0), FAILED, nodes={}, sees_nodes=False)).status.placement == 3


def test_absence_is_confirmed_before_it_costs_an_incarnation_and_what_was_seen_is_not() -> None:
    assert plan_unit(unit(pod(0))).needs_fresh_list
    assert not plan_unit(unit(pod(0), FAILED)).needs_fresh_list
    replaced = pod(
        1, made_for=3, placement=2, node="", unschedulable="0/4", unschedulable_since=NOW, pool="p"
    )
    taken = unit(pod(0, placement=2), replaced, now=NOW + 15, status=status(placement=2, met=False))
    assert (
        plan_unit(taken).status.restarts[-1].reason == "CapacityUnavailable"
        and plan_unit(taken).needs_fresh_list
    )
    moves = status("Healing", conditions=transition((), {"Draining": state(True, "HostMaintenance")}, 1, NOW))
    gone = [pod(host, phase="Succeeded", deletion_time=NOW) for host in (0, 1)]
    assert not plan_unit(unit(*gone, status=moves)).needs_fresh_list
    assert plan_unit(unit(gone[0], status=moves)).needs_fresh_list


def test_a_pod_that_is_being_deleted_is_hurried_and_keeps_its_host_until_it_has_ended() -> None:
    """The others are told of the new incarnation."""
    healing = status("Healing", met=False, incarnation=4, **HURT)
    plan = plan_unit(unit(pod(0), pod(1, deletion_time=NOW + 60, grace_seconds=60), status=healing))
    assert [(each.name, each.grace_seconds) for each in plan.remove] == [("r-two-0-3-1", 1)]
    assert (plan.create, [each.host for each in plan.renew]) == ((), [0])
    hurried = pod(1, deletion_time=NOW + 300, grace_seconds=1)
    assert plan_unit(unit(pod(0), hurried, status=healing)).remove == (), "the API server's clock is ahead"
    plan = plan_unit(unit(pod(0), pod(1, deletion_time=NOW + 60, **ENDED), status=healing))
    assert [make()["metadata"]["name"] for make in plan.create] == ["r-two-0-4-1"]


def test_a_unit_leaves_a_host_that_is_about_to_go_between_two_steps() -> None:
    leaving = {"n-1": NodeView(name="n-1", maintenance="taint")}
    begun = plan_unit(unit(nodes=leaving)).status
    moves = unit(nodes=leaving, status=begun)
    assert [each.grace_seconds for each in plan_unit(moves).remove] == [60, 60]
    for generation in (1, 2):  # also if its spec changes
        ends = replace(
            moves, pods=tuple(pod(n, deletion_time=NOW + 60) for n in (0, 1)), generation=generation
        )
        waits = plan_unit(replace(ends, now=NOW + 59))
        assert (waits.advance, waits.create, waits.wake) == (False, (), NOW + 60)
    assert plan_unit(replace(ends, now=NOW + 60)).status.incarnation == 4, (
        "a drain that does not end is over in time"
    )


@pytest.mark.parametrize("last", ["HostMaintenance", "AppError"])
def test_a_unit_in_its_back_off_leaves_a_host_at_once_unless_it_has_just_moved(last: str) -> None:
    restarted = status(restarts=(Restart(time=format_time(NOW - 1), reason=last),))
    found = unit(nodes={"n-1": NodeView(name="n-1", maintenance="taint")}, status=restarted)
    plan = plan_unit(found)
    assert plan.advance is (last == "AppError")
    if last == "HostMaintenance":
        assert plan.wake is not None and NOW < plan.wake <= NOW + 5
        return
    gone = replace(
        found, pods=tuple(pod(n, phase="Failed", deletion_time=NOW) for n in (0, 1)), status=plan.status
    )
    assert "the unit comes back at" in plan_unit(gone).status.message and not plan_unit(gone).advance
    assert plan_unit(replace(gone, now=NOW + 6)).status.incarnation == 4


def test_a_run_that_ends_heals_and_moves_and_removes_no_pod() -> None:
    over = SyncerState().heard(contract.SyncerStatus(run_uid="u", phase="Finishing"), NOW)
    leaving = {"n-0": NodeView(name="n-0", maintenance="taint")}
    for pods in ((pod(0), FAILED), (pod(0),)):
        plan = plan_unit(unit(*pods, nodes=leaving, syncer=over, now=NOW + 3600))
        assert (plan.advance, plan.create, plan.remove) == (False, (), ())
    assert plan_unit(unit(pod(0), replace(FAILED, exit_code=0, exit_message=""))).wake == NOW + 15


def test_a_hang_is_judged_by_a_later_answer_and_the_first_step_has_the_time_of_a_start() -> None:
    def found(now: float, **changes: Any) -> tuple[bool, float | None]:
        one = unit(**({"syncer": replace(syncer(), heard_at=now)} | changes), now=now)
        cause, wake = deadlines.overdue(one, one.pods)
        return cause is not None, wake

    assert (found(NOW + 899), found(NOW + 900)) == ((False, NOW + 900), (True, None))
    assert found(NOW + 900, syncer=replace(syncer(), heard_at=NOW + 9)) == (False, NOW + 902)
    first = {"pace": Pace(3, 0, False, NOW)}
    assert (found(NOW + 1799, **first)[0], found(NOW + 1800, **first)[0]) == (False, True)
    for never in (
        {"recovery": RecoverySpec(hang_seconds=0)},
        {"pace": None},
        {"pace": Pace(2, 40, True, NOW)},
    ):
        assert found(NOW + 1e6, **never) == (False, None)
    known = deadlines.follow(None, TOLD, NOW - 60, NOW - 9)
    assert known is not None and known.since == NOW - 9, "a step counts from the report that told of it"
    later = TOLD.model_copy(update={"step": 41})
    assert (
        deadlines.follow(known, TOLD, NOW - 60, NOW) == known != deadlines.follow(known, later, NOW - 60, NOW)
    )


def test_a_suspect_unit_of_thousands_of_hosts_names_its_node_pools_first() -> None:
    pods = [pod(n, node=f"gke-h{n:04}", pool=f"gke-p{n // 36:02}") for n in range(2304)]
    (cause,) = deadlines.suspicion(unit(syncer=syncer(suspect="8 refused")), pods)
    assert cause.message.startswith("8 refused; it ran on 2,304 hosts (36 in node pool ")
    assert cause.message.count("36 in node pool gke-p") == 64 and cause.message.count("gke-h") > 100
    assert len(cause.message) == deadlines.SUSPECT_ROOM


@pytest.mark.parametrize(
    "seen",
    [
        {
            "pods": (
                pod(0),
                pod(1, exit_code=1, ended_incarnation=3, exit_message="LossNotFinite: inner step 7"),
            )
        },
        {"pods": (pod(0), pod(1, phase="Failed", disruption="PreemptionByScheduler", finished_at=NOW - 9))},
        {"annotations": {deadlines.HEAL: "3"}},
    ],
)
def test_a_suspect_unit_leaves_its_hosts_whatever_else_is_seen_in_the_same_pass(seen: dict[str, Any]) -> None:
    nodes = {name: NodeView(name=name, pool="p") for name in ("n-0", "n-1")}
    plan = plan_unit(unit(syncer=syncer(suspect="8 refused"), nodes=nodes, **seen))
    last = plan.status.restarts[-1]
    assert (plan.status.placement, last.reason, last.avoid) == (4, "Suspect", ("p",))
    assert told(plan, "Suspect") == ("True", "Suspect")


def test_a_unit_is_suspect_until_another_incarnation_is_merged_whatever_fails_before() -> None:
    suspect = plan_unit(unit(syncer=syncer(suspect="8 refused"))).status
    failed = pod(1, placement=4, made_for=4, incarnation=4, **ENDED)
    again = plan_unit(unit(pod(0, placement=4, made_for=4, incarnation=4), failed, status=suspect))
    found = [find(each.conditions, "Suspect") for each in (suspect, again.status)]
    assert again.status.last_failure.reason == "OSError"
    assert [(each.status, "it ran on n-0, n-1" in each.message) for each in found] == [("True", True)] * 2
    merged = describe(
        unit(status=again.status, syncer=syncer(incarnation=4)), UnitPlan(status=again.status, members=())
    )
    assert told(merged, "Suspect") == ("False", "NotSuspect")


def test_a_unit_is_seeded_and_in_time_only_when_all_its_hosts_are_connected() -> None:
    starts = status("Starting", met=False)
    joining = replace(syncer(hosts=1, state="Joining", loss=None), answering_since=NOW - 9e3)
    one = unit(status=starts, syncer=joining, pace=Pace(3, 0, False, NOW))
    found = describe(one, UnitPlan(status=starts, members=one.pods))
    assert told(found, "Seeded") == ("False", "Seeding")
    late = replace(one, status=found.status, now=NOW + 900, syncer=replace(joining, heard_at=NOW + 900))
    assert plan_unit(late).status.last_failure.reason == "StartupTimedOut"


def test_pods_are_ready_when_all_containers_have_restarted_or_all_hosts_are_connected() -> None:
    restart = Restart(time=format_time(NOW), reason="AppError", in_place=True)
    healing = status("Healing", met=False, incarnation=4, restarts=(restart,), **HURT)
    pods = (pod(0, incarnation=4), pod(1, incarnation=4, ended_incarnation=3))
    one = unit(*pods, status=healing)
    found = describe(one, UnitPlan(status=healing, members=pods))
    assert (told(found, "Scheduled"), found.status.phase) == (("True", "Scheduled"), "Healing")
    assert told(found, "PodsReady") == ("False", "Restarting")
    assert "1 of 2 containers restarted in place" in {each.message for each in found.status.conditions}
    joining = replace(one, syncer=syncer(incarnation=4, state="Joining"))
    for members, ready in ((pods, "True"), (pods[:1], "False")):  # not while a pod is missing
        found = describe(joining, UnitPlan(status=healing, members=members))
        assert told(found, "PodsReady")[0] == ready


GATED = {"gates": ("kueue.x-k8s.io/admission",), "queue": "team", "group": "r-two-0-1-abc"}
HOLDS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"waiting": "ImagePullBackOff", "waiting_message": "not found"},
        "ImagePull",
        "r-two-0-3-1: ImagePullBackOff",
    ),
    ({"waiting": "CreateContainerError"}, "CreateContainerError", "r-two-0-3-1: "),
    ({"waiting": "ContainerCreating", "scheduled_at": NOW - 1799}, "", ""),
    (
        {"waiting": "ContainerCreating", "scheduled_at": NOW - 1800},
        "ContainerCreating",
        "not started 1800 s after",
    ),
    ({"node": "", "unschedulable": "0/4 nodes"}, "CapacityUnavailable", "r-two-0-3-1: 0/4 nodes"),
    (GATED, "Queued", "kubectl describe workload r-two-0-1-abc"),
    ({"gates": ("example.com/scan",)}, "SchedulingGated", "example.com/scan"),
]


@pytest.mark.parametrize(("changes", "reason", "words"), HOLDS, ids=[row[1] for row in HOLDS])
def test_what_keeps_a_pod_from_running_is_a_condition_and_no_failure(
    changes: dict[str, Any], reason: str, words: str
) -> None:
    pods = [pod(host, phase="Pending", ready=False, started_at=None, **changes) for host in (0, 1)]
    found = waiting(pods[1:], 1800, NOW)
    assert (found or ("", ""))[0] == reason and words in (found or ("", ""))[1]
    plan = plan_unit(unit(*pods, status=status("Starting", met=False), syncer=SyncerState()))
    assert (plan.advance, plan.create, plan.remove) == (False, (), ())


def test_a_unit_in_a_queue_has_no_deadline() -> None:
    queued = learner_unit(queue_name="team")
    pods = [pod(host, phase="Pending", node="", ready=False, started_at=None, **GATED) for host in (0, 1)]
    plan = plan_unit(unit(*pods, spec=queued.spec, status=status("Scheduling", met=False), now=NOW + 1e6))
    assert (plan.advance, plan.wake) == (False, None)
    assert "kueue" in str(all_pods(queued)) and "kueue" not in str(all_pods(learner_unit())), (
        "no queue is none"
    )


def test_a_stuck_pod_is_removed_by_force_only_where_that_is_wanted() -> None:
    stuck = pod(1, uid="old", placement=2, deletion_time=NOW - 30)
    for force in (False, True):
        plan = plan_unit(unit(pod(0), pod(1), stuck, recovery=RecoverySpec(force_delete=force)))
        assert [each.grace_seconds for each in plan.remove] == [0] * force
    queued = replace(stuck, queue="team")
    (removal,) = plan_unit(unit(pod(0), pod(1), queued, recovery=RecoverySpec(force_delete=True))).remove
    assert removal.finalizer == "kueue.x-k8s.io/managed", "it is released from its queue"


def restarts(count: int, why: str = "AppError") -> tuple[Restart, ...]:
    return tuple(Restart(time=format_time(NOW - count + number), reason=why) for number in range(count))


@given(count=st.integers(1, 40), share=st.floats(0, 1, exclude_max=True))
def test_a_back_off_doubles_has_a_bound_and_a_jitter_of_a_fifth(count: int, share: float) -> None:
    allowance = budget_of(restarts(count), RecoverySpec(max_restarts=1000), NOW, share)
    wait = allowance.not_before - parse_time(restarts(count)[-1].time)
    middle = min(5.0 * 2 ** (count - 1), 300.0)
    assert 0.8 * middle - 1e-3 <= wait <= 1.2 * middle + 1e-3 and not allowance.exhausted


@pytest.mark.parametrize(
    ("count", "why", "allowed", "later", "exhausted"),
    [
        (3, "AppError", 3, 0, True), (3, "AppError", 4, 0, False), (3, "AppError", 3, 3600, False),
        (0, "AdmissionRejected", 0, 0, True), (1, "AdmissionRejected", 1, 0, False),
        (2, "AdmissionRejected", 1, 0, True), (2, "AdmissionRejected", 2, 0, False),
    ],
)  # fmt: skip
def test_a_budget_counts_but_a_first_rejection(
    count: int, why: str, allowed: int, later: int, exhausted: bool
) -> None:
    found = budget_of(restarts(count, why), RecoverySpec(max_restarts=allowed), NOW + later, 0.5)
    assert found.exhausted is exhausted


@pytest.mark.parametrize("ahead", [120, 86_400])
def test_a_restart_that_a_wrong_clock_noted_stops_no_heal_and_does_not_count(ahead: int) -> None:
    late = [item.model_copy(update={"time": format_time(NOW + ahead)}) for item in restarts(3)]
    found = budget_of(late, RecoverySpec(), NOW, 0.5)
    assert (found.not_before, found.exhausted, len(found.recent)) == (NOW, False, 0)
    written = (*found.recent, Restart(time=format_time(NOW), reason="AppError"))
    for look in (NOW + 1, NOW + 9):
        assert budget_of(written, RecoverySpec(), look, 0.5).not_before == NOW + 5


def test_hosts_that_do_not_connect_are_restarted_in_time_after_a_restart_that_a_wrong_clock_noted() -> None:
    ahead = Restart(time=format_time(NOW + 86_400), reason="AppError", in_place=True)
    healing = status("Healing", met=False, incarnation=4, restarts=(ahead,), **HURT)
    pods = [pod(host, incarnation=4, ended_incarnation=3, started_at=NOW) for host in (0, 1)]
    joining = replace(syncer(incarnation=4, hosts=1, state="Joining"), heard_at=NOW + 1800)
    plan = plan_unit(unit(*pods, status=healing, syncer=joining, now=NOW + 1800))
    assert plan.advance and plan.status.last_failure.reason == "StartupTimedOut"


def test_the_jitter_is_not_the_same_for_all_units() -> None:
    assert len({jitter(f"uid-{number}", 3) for number in range(50)}) > 40


def test_pods_read_their_incarnation_where_it_is_looked_for_and_keep_what_outlives_a_container() -> None:
    spec = all_pods(learner_unit())[0]["spec"]
    assert spec["restartPolicy"] == "OnFailure"
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    volume = next(item for item in spec["volumes"] if "downwardAPI" in item)
    (file,) = volume["downwardAPI"]["items"]
    assert f"{mounts[volume['name']]}/{file['path']}" == contract.INCARNATION_FILE
    assert file["fieldRef"]["fieldPath"] == "metadata.annotations['atoll.dev/incarnation']"
    assert MEMORY_FILE.startswith(f"{mounts['tmp']}/")


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1.5", "", "٣"])
def test_a_number_that_is_none_of_ours_is_taken_for_none(text: str) -> None:
    labels = {"atoll.dev/placement": text, "atoll.dev/host": text}
    pod = view({"metadata": {"name": "p", "labels": labels, "annotations": {"atoll.dev/incarnation": text}}})
    assert (pod.placement, pod.host, pod.incarnation) == (0, 0, 0)


def test_of_several_containers_the_learners_own_counts_wherever_it_stands() -> None:
    ended = {"exitCode": 65, "message": "incarnation 1\nNonFiniteLoss: step 3\n"}
    main = {"name": "main", "state": {"terminated": ended}}
    proxy = {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    killed = {"name": "istio-proxy", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    for statuses in ([proxy, main], [main, proxy], [killed, main]):
        pod = view({"metadata": {"name": "p"}, "status": {"containerStatuses": statuses}})
        assert (pod.exit_code, pod.exit_message, pod.started_at) == (65, "NonFiniteLoss: step 3", None)
    alone = view({"metadata": {"name": "p"}, "status": {"containerStatuses": [killed]}})
    assert (alone.exit_code, alone.exit_reason) == (None, "")


def test_pods_and_groups_have_names_that_fit_and_a_group_one_that_a_later_unit_does_not_share() -> None:
    unit = names.unit_name("r" * (names.NAMES_LIMIT - 10), "p" * 10, 255)
    assert len(names.pod_name(unit, names.MAX_INCARNATION, 1535)) == 63, "as long as a host name may be"
    assert len(names.pod_group(unit, names.MAX_INCARNATION, "3fa9c0de")) <= 63
    assert names.pod_group("r-two-0", 1, "3fa9c0de") != names.pod_group("r-two-0", 1, "77aac0de")
