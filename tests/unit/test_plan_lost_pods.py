"""Pods of syncer and evaluator on lost nodes: they leave within seconds, and make room for their successors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from objects import RUN, TWO_HOSTS

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.sections import EvaluatorSpec, RecoverySpec, SyncerSpec
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods import evaluator, syncer
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.removal import LOST_GRACE_SECONDS, STUCK_SECONDS, Removal
from atoll_operator.plan.run.objects import RunObserved
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved

NOW = 1_700_000_000.0
SETTINGS = PodSettings(run="r", image="i", pull_policy="Always", environment={})
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
THEIRS = {"key": "dedicated", "operator": "Exists"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            syncer.stateful_set("r", "n", [], SyncerSpec(tolerations=(THEIRS,)), SETTINGS, 1, 0), id="syncer"
        ),
        pytest.param(
            evaluator.stateful_set("r", "n", [], EvaluatorSpec(tolerations=(THEIRS,)), SETTINGS, 1),
            id="evaluator",
        ),
    ],
)
def test_pods_leave_a_lost_node_after_half_a_minute_in_place_of_five(body: dict[str, Any]) -> None:
    tolerations = body["spec"]["template"]["spec"]["tolerations"]
    assert {item["key"]: item["tolerationSeconds"] for item in tolerations[:-1]} == dict.fromkeys(LOST, 30)
    assert {item["effect"] for item in tolerations[:-1]} == {"NoExecute"}
    assert tolerations[-1] == THEIRS


@pytest.mark.parametrize(("sees_nodes", "seconds"), [(True, 30), (False, 4)])
def test_the_pods_of_a_unit_leave_a_lost_node_in_time_where_the_operator_sees_none(
    sees_nodes: bool, seconds: int
) -> None:
    orders = Orders(stop="", finishing=False, recovery=RecoverySpec(node_lost_seconds=4), settings=SETTINGS)
    unit = UnitObserved(
        name="r-two-0", namespace="n", uid="u", generation=1, spec=TWO_HOSTS, orders=orders, sees_nodes=sees_nodes,
        pods=(), status=LearnerUnitStatus(incarnation=1, gang=1),
    )  # fmt: skip
    pods = plan_unit(unit, NOW).create
    assert pods
    for pod in pods:
        tolerations = {item["key"]: item.get("tolerationSeconds") for item in pod["spec"]["tolerations"]}
        assert {key: tolerations[key] for key in LOST} == dict.fromkeys(LOST, seconds)


def test_with_the_default_the_pods_of_a_lost_node_that_nobody_sees_are_deleted_within_a_minute() -> None:
    not_ready = 55  # at most, after the node's last sign of life
    assert not_ready + RecoverySpec().node_lost_seconds < 60


def shard(**changes: Any) -> PodView:
    return PodView(**{"name": "r-syncer-0", "uid": "u0", "phase": "Running", "node": "a", **changes})


def plan(pod: PodView, node: NodeView | None, now: float = NOW, **recovery: Any) -> RunPlan:
    spec = TrainingRunSpec.model_validate({**RUN["spec"], "recovery": {"nodeLostSeconds": 3, **recovery}})
    run = RunObserved(
        name="r", namespace="n", uid="u", generation=1, spec=spec, status=TrainingRunStatus(), settings=SETTINGS,
        units={}, syncer_pods=(pod,), nodes={} if node is None else {node.name: node},
    )  # fmt: skip
    return plan_run(run, now)


GONE = NodeView(name="a", gone=True)
OUT_OF_SERVICE = NodeView(name="a", out_of_service=True)
SILENT = NodeView(name="a", silent_since=NOW - 10)
STUCK = NOW - STUCK_SECONDS


@pytest.mark.parametrize("node", [GONE, OUT_OF_SERVICE], ids=["gone", "out-of-service"])
@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(shard(), id="running"),
        pytest.param(shard(deletion_time=NOW + 20), id="terminating"),
        pytest.param(shard(phase="Failed"), id="ended"),
    ],
)
def test_of_a_node_that_is_off_for_certain_pods_go_by_force_at_once(pod: PodView, node: NodeView) -> None:
    assert plan(pod, node).release == (Removal("r-syncer-0", "u0", 0),)


@pytest.mark.parametrize(
    ("pod", "node", "force"),
    [
        pytest.param(shard(deletion_time=STUCK), SILENT, False, id="not-wanted"),
        pytest.param(shard(deletion_time=STUCK), NodeView(name="a"), True, id="node-is-sound"),
        pytest.param(shard(deletion_time=STUCK), None, True, id="node-was-never-seen"),
        pytest.param(shard(deletion_time=STUCK), NodeView(name="b", gone=True), True, id="another-node"),
        pytest.param(shard(deletion_time=NOW - 5), SILENT, True, id="not-stuck-yet"),
        pytest.param(shard(), NodeView(name="a", silent_since=NOW - 2), True, id="not-silent-for-long"),
    ],
)
def test_a_pod_that_may_go_or_live_by_itself_is_left_alone(
    pod: PodView, node: NodeView | None, force: bool
) -> None:
    assert plan(pod, node, forceDelete=force).release == ()


def test_with_force_the_shard_of_a_silent_node_has_a_successor_within_a_minute() -> None:
    began, pod = NOW, shard()
    node = NodeView(name="a", silent_since=began)
    assert plan(pod, node, began, forceDelete=True).wake == began + 3
    told = plan(pod, node, began + 3, forceDelete=True)
    assert told.release == (Removal("r-syncer-0", "u0", LOST_GRACE_SECONDS),)
    assert told.wake is not None and told.wake < began + 60
    pod = replace(pod, deletion_time=began + 3 + LOST_GRACE_SECONDS)
    assert plan(pod, node, told.wake, forceDelete=True).release == (Removal("r-syncer-0", "u0", 0),)


def test_the_evaluator_of_a_lost_node_goes_too_and_so_does_a_pod_that_a_suspension_waits_for() -> None:
    spec = TrainingRunSpec.model_validate({**RUN["spec"], "suspend": True})
    pods = (shard(deletion_time=NOW), shard(name="r-evaluator-0", uid="u1"))
    run = RunObserved(
        name="r", namespace="n", uid="u", generation=1, spec=spec, settings=SETTINGS, units={},
        status=TrainingRunStatus(phase="Suspended"), syncer_pods=pods[:1], evaluator_pods=pods[1:],
        nodes={"a": GONE},
    )  # fmt: skip
    assert [removal.uid for removal in plan_run(run, NOW).release] == ["u0", "u1"]
