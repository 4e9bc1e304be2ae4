"""A gang in a queue of Kueue: what its pods carry, how its wait is told, and how it loses its place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from objects import TWO_HOSTS
from run_scene import RunScene, specs, unit_status

from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import find, state, transition
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods import names
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.removal import Removal, removals
from atoll_operator.plan.unit.failure import classify, waiting
from atoll_operator.plan.unit.placement import Spot
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved

NOW = 1_700_000_000.0
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
QUEUED = TWO_HOSTS.model_copy(update={"queue_name": "team"})
NODES = {name: NodeView(name=name, pool="red") for name in ("red-0", "red-1")}


def pods_of(spec: LearnerUnitSpec) -> tuple[Object, ...]:
    gang = Gang(
        namespace="ns", unit="r-two-0", uid="3fa9c0de", number=3, incarnation=3, spec=spec, settings=SETTINGS
    )
    return gang.pods({0: Spot(holds=True), 1: Spot(pool="red")})


def seen(pod: Object, **status: Any) -> PodView:
    """The pod as the API server would show it."""
    gated = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked",
    }
    held = [gated] if pod["spec"].get("schedulingGates") else []
    return view({**pod, "status": {"phase": "Pending", "conditions": held, **status}})


def unit_of(
    spec: LearnerUnitSpec, pods: tuple[PodView, ...], status: LearnerUnitStatus, **orders: Any
) -> UnitObserved:
    return UnitObserved(
        name="r-two-0",
        namespace="ns",
        uid="u",
        generation=1,
        spec=spec,
        status=status,
        pods=pods,
        orders=Orders(
            **({"stop": "", "finishing": False, "recovery": RecoverySpec(), "settings": SETTINGS} | orders)
        ),
        nodes=NODES,
        answering_since=NOW - 1e6,
    )


def test_a_queue_adds_a_group_and_a_gate_to_each_pod_and_changes_nothing_else() -> None:
    for plain, pod in zip(pods_of(TWO_HOSTS), pods_of(QUEUED), strict=True):
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        added = {
            "kueue.x-k8s.io/queue-name": "team",
            "kueue.x-k8s.io/pod-group-name": "r-two-0-3-3fa9",
            "kueue.x-k8s.io/managed": "true",
        }
        assert labels == plain["metadata"]["labels"] | added
        added = {
            "kueue.x-k8s.io/pod-group-total-count": "2",
            "kueue.x-k8s.io/retriable-in-group": "false",
            "kueue.x-k8s.io/safe-to-forcefully-delete": "true",
        }
        assert annotations == plain["metadata"]["annotations"] | added
        assert pod["spec"] == plain["spec"] | {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
        assert pod["metadata"].keys() == plain["metadata"].keys()


def test_a_pod_without_a_queue_is_what_it_was_before_there_were_queues() -> None:
    for pod in pods_of(TWO_HOSTS):
        assert "kueue" not in json.dumps(pod)
        assert "schedulingGates" not in pod["spec"]


def test_a_group_has_a_name_that_a_label_can_hold_and_that_a_unit_of_the_same_name_does_not_share() -> None:
    unit = names.unit_name("r" * (names.NAMES_LIMIT - 10), "p" * 10, 255)
    assert len(names.pod_group(unit, names.MAX_INCARNATION, "3fa9c0de")) <= 63
    assert names.pod_group("r-two-0", 1, "3fa9c0de") != names.pod_group("r-two-0", 1, "77aac0de")


def test_a_priority_in_the_queue_is_a_label() -> None:
    spec = QUEUED.model_copy(update={"queue_priority_class": "important"})
    for pod in pods_of(spec):
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "important"


def test_all_pods_of_a_queued_gang_are_made_at_once_and_name_no_pool() -> None:
    former = tuple(
        PodView(
            name=f"r-two-0-1-{host}", gang=1, host=host, node=f"red-{host}", phase="Failed", deletion_time=NOW
        )
        for host in range(2)
    )
    status = LearnerUnitStatus(
        phase="Healing",
        incarnation=2,
        gang=2,
        heal_start_time=format_time(NOW - 5),
        restarts=(Restart(time=format_time(NOW - 5), reason="AppError"),),
    )
    without = plan_unit(unit_of(TWO_HOSTS, former, status), NOW).create
    assert {pod["spec"]["nodeSelector"].get("cloud.google.com/gke-nodepool") for pod in without} == {"red"}
    made = plan_unit(unit_of(QUEUED, former, status), NOW).create
    assert [pod["metadata"]["name"] for pod in made] == ["r-two-0-2-0", "r-two-0-2-1"]
    assert {pod["spec"]["nodeSelector"].get("cloud.google.com/gke-nodepool") for pod in made} == {None}


def test_a_gang_that_waits_in_a_queue_says_so_and_no_deadline_runs() -> None:
    pods = tuple(seen(pod) for pod in pods_of(QUEUED))
    status = LearnerUnitStatus(phase="Scheduling", incarnation=3, gang=3, placed_gang=3)
    plan = plan_unit(unit_of(QUEUED, pods, status, recovery=RecoverySpec(startup_seconds=30)), NOW + 1e6)
    scheduled = find(plan.status.conditions, "Scheduled")
    assert scheduled is not None
    assert (scheduled.status, scheduled.reason) == ("False", "Queued")
    assert scheduled.message.startswith("2 of 2 pods wait for admission by queue team")
    assert "kubectl describe workload r-two-0-3-3fa9`" in scheduled.message
    assert (plan.advance, plan.create, plan.remove, plan.wake) == (False, (), (), None)
    assert plan.status.restart_count == 0


def test_a_gate_of_somebody_else_is_named() -> None:
    [pod, _] = pods_of(TWO_HOSTS)
    pod = {**pod, "spec": {**pod["spec"], "schedulingGates": [{"name": "example.com/scan"}]}}
    found = waiting([seen(pod)])
    assert found is not None
    assert found[0] == "SchedulingGated"
    assert "example.com/scan" in found[1]


@pytest.mark.parametrize("reason", ["WorkloadEvictedDueToPreempted", "WorkloadDeleted", "NotAdmitted"])
def test_a_pod_that_kueue_stops_is_preempted_with_its_words(reason: str) -> None:
    [pod, _] = pods_of(QUEUED)
    pod["metadata"]["deletionTimestamp"] = format_time(NOW)
    target = {
        "type": "TerminationTarget",
        "status": "True",
        "reason": reason,
        "message": "a more important one came",
    }
    cause = classify(seen(pod, phase="Running", conditions=[target]), 3)
    assert cause is not None
    assert (cause.reason, cause.message) == ("Preempted", "a more important one came")


@pytest.mark.parametrize(("queue", "finalizer"), [("team", "kueue.x-k8s.io/managed"), ("", "")])
def test_a_pod_of_a_queue_that_is_stuck_is_let_go_where_force_is_wanted(queue: str, finalizer: str) -> None:
    stuck = PodView(name="r-two-0-1-0", uid="1", queue=queue, phase="Running", deletion_time=NOW - 60)
    assert removals([stuck], 1, True, NOW)[0] == (Removal("r-two-0-1-0", "1", 0, finalizer),)
    assert removals([stuck], 1, False, NOW)[0] == ()


def test_a_pod_to_which_somebody_gave_longer_is_told_to_go_within_our_time_and_once() -> None:
    """Its host is wanted for its successor."""
    patient = PodView(name="p", uid="1", phase="Running", deletion_time=NOW + 60)
    assert removals([patient], 1, False, NOW)[0] == (Removal("p", "1", 1),)
    assert removals([replace(patient, deletion_time=NOW + 1)], 1, False, NOW)[0] == ()
    assert removals([patient], 60, False, NOW)[0] == ()
    assert removals([replace(patient, phase="Failed")], 1, False, NOW)[0] == ()


def test_run_hands_its_queue_to_its_units_and_another_queue_is_rolled_out() -> None:
    scene = RunScene({"a": 1}, queueName="team", queuePriorityClass="important")
    spec = specs(scene.step())["r-a-0"]
    assert (spec["queueName"], spec["queuePriorityClass"]) == ("team", "important")
    assert scene.plan().status.units_updated == 1
    for changed in ({"queueName": "other"}, {"queuePriorityClass": None}):
        assert scene.change(**changed).plan().status.units_updated == 0


def test_unit_that_waits_in_its_queue_degrades_the_run_with_its_words_and_does_not_heal() -> None:
    queued = transition((), {"Scheduled": state(False, "Queued", "waits")}, 1, NOW)
    preempted = unit_status(phase="Healing", message="AppError: x", conditions=queued)
    scene = RunScene({"a": 2}, queueName="team")
    scene.unit("r-a-0", preempted).unit("r-a-1", unit_status(phase="Healing", message="AppError: x"))
    assert scene.condition("Degraded") == ("True", "Queued", "r-a-0: waits")
    assert scene.only("r-a-1").condition("Degraded")[1] == "UnitHealing"
    scene.unit("r-a-1", unit_status(phase="Scheduling", conditions=queued))
    assert scene.condition("Degraded")[:2] == ("True", "Queued")
