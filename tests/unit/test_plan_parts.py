"""Shapes, names, causes, conditions: the small decisions."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.conditions import only_figures, state, transition
from atoll_operator.plan.pods import names
from atoll_operator.plan.pods.topology import GENERATIONS, chips_of, slice_of
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.unit.failure import classify
from atoll_operator.plan.unit.waiting import hindrance, waiting

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("accelerator", "topology", "machine", "hosts", "chips", "kind"),
    [
        ("tpu-v6e-slice", "2x2", None, 1, 4, "v6e-4"),
        ("tpu-v6e-slice", "2x4", "ct6e-standard-4t", 2, 4, "v6e-8"),
        ("tpu-v6e-slice", "2x4", "ct6e-standard-8t", 1, 8, "v6e-8"),
        ("tpu-v6e-slice", "16x16", None, 64, 4, "v6e-256"),
        ("tpu-v5-lite-podslice", "4x4", None, 4, 4, "v5litepod-16"),
        ("tpu-v5p-slice", "2x2x1", None, 1, 4, "v5p-8"),
        ("tpu-v5p-slice", "2x2x4", None, 4, 4, "v5p-32"),
        ("tpu-v5p-slice", "8x8x8", None, 128, 4, "v5p-1024"),
    ],
)
def test_a_slice_has_the_hosts_that_gke_gives_it(accelerator, topology, machine, hosts, chips, kind) -> None:
    shape = slice_of(accelerator, topology, machine)
    assert (shape.hosts, shape.chips_per_host, shape.accelerator_type) == (hosts, chips, kind)


def test_every_offered_slice_is_made_of_whole_hosts() -> None:
    for generation in GENERATIONS:
        for machine in generation.machines:
            for topology in machine.topologies:
                shape = slice_of(generation.accelerator, topology, machine.name)
                assert shape.hosts * shape.chips_per_host == chips_of(topology)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tpu-v9", "2x2"), "one of tpu-v5-lite-podslice"),
        (("tpu-v6e-slice", "2x2x1"), "one of 1x1"),
        (("tpu-v6e-slice", "2x4"), "machineType is needed"),
        (("tpu-v6e-slice", "2x2", "ct6e-standard-8t"), "makes no 2x2"),
    ],
)
def test_a_shape_that_does_not_exist_is_named(arguments, says) -> None:
    with pytest.raises(ValueError, match=says):
        slice_of(*arguments)


def test_the_longest_names_that_the_api_takes_make_host_names_of_63_characters() -> None:
    unit = names.unit_name("r" * (names.NAMES_LIMIT - 10), "p" * 10, 255)
    assert len(names.pod_name(unit, names.MAX_INCARNATION, 1535)) == 63


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"phase": "Failed", "exit_code": 1}, "AppError"),
        ({"phase": "Failed", "exit_code": 137, "exit_reason": "OOMKilled"}, "OutOfMemory"),
        ({"phase": "Failed", "exit_code": 64, "exit_message": "LossNotFinite: nan"}, "LossNotFinite"),
        ({"phase": "Failed", "exit_code": 65}, "Fenced"),
        ({"phase": "Succeeded", "exit_code": 0}, "UnexpectedExit"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted"),
        ({"phase": "Failed", "reason": "NodeShutdown"}, "HostMaintenance"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "AdmissionRejected"),
        ({"phase": "Failed", "reason": "TaintToleration"}, "AdmissionRejected"),
        ({"phase": "Failed", "reason": "OutOfgoogle.com/tpu"}, "AdmissionRejected"),
        ({"phase": "Failed"}, "NodeLost"),
        ({"phase": "Running", "deletion_time": NOW}, "PodDeleted"),
        ({"phase": "Running", "deletion_time": NOW, "disruption": "DeletionByTaintManager"}, "NodeLost"),
        ({"phase": "Failed", "disruption": "PreemptionByScheduler", "exit_code": 143}, "Preempted"),
    ],
)
def test_a_lost_pod_has_a_reason(changes, reason) -> None:
    cause = classify(PodView(name="p", **changes), 1)
    assert cause is not None
    assert cause.reason == reason
    assert cause.message


def test_a_pod_that_may_serve_is_not_lost() -> None:
    assert classify(PodView(name="p"), 1) is None
    assert classify(PodView(name="p", phase="Running"), 1) is None


def test_a_wait_is_no_failure_and_has_a_reason() -> None:
    stuck = PodView(name="p", waiting="ImagePullBackOff", waiting_message="not found")
    assert waiting([stuck])[0] == "ImagePull"
    assert waiting([PodView(name="p", unschedulable="0/3 nodes")])[0] == "CapacityUnavailable"
    assert waiting([PodView(name="p", waiting="ContainerCreating")]) is None


def test_a_pod_is_read_from_the_apis_json() -> None:
    labels = {"atoll.dev/unit": "u", "atoll.dev/placement": "2", "atoll.dev/host": "1"}
    ended = {"exitCode": 64, "message": "incarnation 4\nX: y\n", "finishedAt": "2026-01-01T00:00:00Z"}
    pod = view(
        {
            "metadata": {
                "name": "u-3-1",
                "uid": "i",
                "labels": labels,
                "annotations": {"atoll.dev/incarnation": "5"},
                "deletionTimestamp": "2026-01-01T00:00:05Z",
            },
            "spec": {"nodeName": "n"},
            "status": {
                "phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
            },
        }
    )
    assert (pod.unit, pod.placement, pod.made_for, pod.host, pod.node) == ("u", 2, 3, 1, "n")
    assert (pod.incarnation, pod.ended_incarnation, pod.exit_message) == (5, 4, "X: y")
    assert pod.deletion_time - pod.finished_at == 5


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


def test_a_pod_that_runs_again_is_hindered_by_nothing_that_was_before() -> None:
    ended = {"exit_code": 64, "exit_reason": "Error", "exit_message": "JournalFailed: x"}
    assert "JournalFailed" in hindrance(PodView(name="p", **ended))
    assert hindrance(PodView(name="p", phase="Running", started_at=NOW, **ended)) == ""


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    first = transition((), {"Ready": state(False, "Starting")}, 1, NOW)
    same = transition(first, {"Ready": state(False, "Waiting", "for what")}, 2, NOW + 9)
    assert same[0].last_transition_time == first[0].last_transition_time
    assert (same[0].reason, same[0].observed_generation) == ("Waiting", 2)
    moved = transition(same, {"Ready": state(True, "Ready")}, 2, NOW + 9)
    assert parse_time(moved[0].last_transition_time) == NOW + 9


def test_figures_and_messages_of_true_conditions_can_wait() -> None:
    def status(count: int, ready: str = "True", **figures: Any) -> dict[str, Any]:
        learning = {"type": "Learning", "status": ready, "reason": "R", "message": f"{count} merged"}
        return {"phase": "Running", "conditions": [learning], **figures}

    assert only_figures(
        status(1), status(2, step=9, tokens=8, loss=1.0, sharePercent=3, ledger={"trained": 1})
    )
    assert not only_figures(status(1), status(2, ready="False"))
    assert not only_figures(status(1, "False"), status(2, "False"))
    assert not only_figures(status(1), status(1, message="heals"))
    assert not only_figures(status(1), status(1, restartCount=1))
    assert not only_figures(status(1, lastHealSeconds=3.0), status(1))
