"""Pods of syncer and evaluator on lost nodes: they leave within seconds, and make room for their successors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pod_kinds import workloads
from run_scene import NOW, RunScene

from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.nodes import LOST_GRACE_SECONDS, NodeView
from atoll_operator.plan.pods.view import STUCK_SECONDS, PodView, Removal
from atoll_operator.plan.run.plan import RunPlan

LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
THEIRS = {"key": "dedicated", "operator": "Exists"}


@pytest.mark.parametrize("body", workloads(tolerations=(THEIRS,)).values(), ids=["syncer", "evaluator"])
def test_pods_leave_a_lost_node_after_half_a_minute_in_place_of_five(body: dict[str, Any]) -> None:
    tolerations = body["spec"]["template"]["spec"]["tolerations"]
    assert {item["key"]: item["tolerationSeconds"] for item in tolerations[:-1]} == dict.fromkeys(LOST, 30)
    assert {item["effect"] for item in tolerations[:-1]} == {"NoExecute"}
    assert tolerations[-1] == THEIRS


def test_with_the_default_the_pods_of_a_lost_node_that_nobody_sees_are_deleted_within_a_minute() -> None:
    not_ready = 55  # at most, after the node's last sign of life
    assert not_ready + RecoverySpec().node_lost_seconds < 60


def shard(**changes: Any) -> PodView:
    return PodView(**{"name": "r-syncer-0", "uid": "u0", "phase": "Running", "node": "a", **changes})


def plan(pod: PodView, node: NodeView | None, after: float = 0.0, **recovery: Any) -> RunPlan:
    scene = RunScene(recovery={"nodeLostSeconds": 3, **recovery}).unknown()
    return scene.see(syncer_pods=(pod,), nodes={} if node is None else {node.name: node}).plan(after)


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
    assert plan(pod, node).release_pods == (Removal("r-syncer-0", "u0", 0),)


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
    assert plan(pod, node, forceDelete=force).release_pods == ()


def test_with_force_the_shard_of_a_silent_node_has_a_successor_within_a_minute() -> None:
    pod, node = shard(), NodeView(name="a", silent_since=NOW)
    assert plan(pod, node, forceDelete=True).wake == NOW + 3
    first = plan(pod, node, 3, forceDelete=True)
    assert first.release_pods == (Removal("r-syncer-0", "u0", LOST_GRACE_SECONDS),)
    assert first.wake is not None and first.wake < NOW + 60
    pod = replace(pod, deletion_time=NOW + 3 + LOST_GRACE_SECONDS)
    second = plan(pod, node, first.wake - NOW, forceDelete=True)
    assert second.release_pods == (Removal("r-syncer-0", "u0", 0),)


def test_evaluator_of_a_lost_node_goes_too_and_so_does_a_pod_that_a_suspension_waits_for() -> None:
    pods = (shard(deletion_time=NOW), shard(name="r-evaluator-0", uid="u1"))
    scene = RunScene(suspend=True).unknown()
    scene.see(syncer_pods=pods[:1], evaluator_pods=pods[1:], nodes={"a": GONE})
    assert [removal.uid for removal in scene.plan().release_pods] == ["u0", "u1"]
