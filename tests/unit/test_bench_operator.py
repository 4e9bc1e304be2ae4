"""`atoll bench operator`: pods as the watch reports them, and figures with their targets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atoll_bench.client import BenchError
from atoll_bench.pods import Pods, touched
from atoll_bench.shapes import MANY, SMALL, WIDE
from atoll_bench.trial import times, training_run
from atoll_bench.verdict import Samples, figures
from atoll_cli.__main__ import main
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.pods.topology import slice_of


def line(
    change: str,
    name: str,
    phase: str = "Pending",
    *,
    leaving: bool = False,
    role: str = "learner",
    told: str = "",
) -> bytes:
    unit, gang, _ = name.rsplit("-", 2)
    labels = {"atoll.dev/component": role, "atoll.dev/unit": unit, "atoll.dev/placement": gang}
    metadata: dict[str, Any] = {
        "name": name, "uid": f"uid-{name}", "labels": labels, "resourceVersion": "7",
        "annotations": {"atoll.dev/incarnation": told or gang},
    }  # fmt: skip
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    return json.dumps({"type": change, "object": {"metadata": metadata, "status": {"phase": phase}}}).encode()


def two_running() -> Pods:
    """Units `a` and `b` of one host each, made at 1 s and 2 s, running since 3 s and 4 s."""
    pods = Pods()
    for at, unit in enumerate("ab", start=1):
        pods.see(line("ADDED", f"{unit}-1-0"), float(at))
    for at, unit in enumerate("ab", start=3):
        pods.see(line("MODIFIED", f"{unit}-1-0", "Running"), float(at))
    return pods


def test_pod_runs_from_the_first_event_that_says_so() -> None:
    pods = two_running()
    pods.see(line("MODIFIED", "b-1-0", "Running"), 9.0)
    assert (pods.alive, pods.running) == (2, 2)
    assert pods.last_running() == 4.0
    assert pods.units() == {"a": (1, 1), "b": (1, 1)}


def test_replaced_pod_counts_for_its_unit_alone() -> None:
    pods = two_running()
    pods.see(line("MODIFIED", "a-1-0", "Failed"), 10.0)
    assert (pods.alive, pods.running) == (1, 1)
    pods.see(line("MODIFIED", "a-1-0", "Failed", leaving=True), 11.0)
    pods.see(line("ADDED", "a-2-0"), 11.5)
    pods.see(line("DELETED", "a-1-0", "Failed", leaving=True), 12.0)
    pods.see(line("MODIFIED", "a-2-0", "Running"), 13.0)
    assert (pods.alive, pods.running, pods.last_running()) == (2, 2, 13.0)
    assert [life.name for life in pods.born_since(10.0)] == ["a-2-0"]
    assert touched(pods.lives.values(), {"a"}, since=10.0) == (2, 0)
    assert touched(pods.lives.values(), {"b"}, since=10.0) == (0, 2)
    assert touched(pods.lives.values(), {"a"}, since=12.5) == (0, 0)
    assert pods.units() == {"a": (2, 1), "b": (1, 1)}


def test_deleted_pod_is_neither_alive_nor_running() -> None:
    pods = two_running()
    pods.see(line("MODIFIED", "b-1-0", "Running", leaving=True), 5.0)
    assert (pods.alive, pods.running) == (1, 1)
    pods.see(line("DELETED", "b-1-0", "Running", leaving=True), 6.0)
    assert (pods.alive, pods.running) == (1, 1)


def test_pod_that_stays_takes_the_incarnation_of_its_annotation() -> None:
    pods = two_running()
    pods.see(line("MODIFIED", "a-1-0", "Running", told="2"), 10.0)
    pods.see(line("MODIFIED", "a-1-0", "Running", told="2"), 11.0)
    assert pods.units() == {"a": (2, 1), "b": (1, 1)}
    assert pods.lives["uid-a-1-0"].told == 10.0
    pods.see(line("ADDED", "a-1-1", told="2"), 12.0)
    pods.see(line("MODIFIED", "a-1-1", "Running", told="2"), 13.0)
    found = times(pods, 9.0)
    assert (found["first_created"], found["all_running"], found["last_told"]) == (3.0, 4.0, 1.0)


def test_syncer_pod_is_not_counted() -> None:
    pods = Pods()
    pods.see(line("ADDED", "r-syncer-0", "Running", role="syncer"), 1.0)
    assert (pods.alive, pods.lives) == (0, {})


def test_watch_error_ends_the_bench_with_its_message() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    with pytest.raises(BenchError, match="too old resource version"):
        Pods().see(json.dumps(gone).encode(), 1.0)


def test_figure_is_the_median_with_its_range() -> None:
    samples = Samples()
    for seconds in (6.0, 8.0, 7.0):
        samples.add("c", WIDE, {"all_running": seconds, "etcd_cpu": 1.0})
    found = {figure.name: figure for figure in figures(samples)}
    running = found["all_running"]
    assert (running.value, running.low, running.high) == (7.0, 6.0, 8.0)
    assert (running.target, running.met) == (7.0, True)
    assert (running.units, running.pods, running.nodes, running.rounds) == (100, 1600, 100, 3)
    assert (found["etcd_cpu"].target, found["etcd_cpu"].met) == (None, None)


def test_figure_above_its_target_does_not_meet_it() -> None:
    samples = Samples()
    samples.add("c", WIDE, {"all_running": 7.1})
    assert [figure.met for figure in figures(samples)] == [False]


@pytest.mark.parametrize("shape", [SMALL, WIDE, MANY], ids=lambda shape: shape.name)
def test_shapes_are_real_slices_and_their_runs_are_valid(shape) -> None:
    offered = slice_of(shape.accelerator, shape.topology)
    assert (offered.hosts, offered.machine, offered.chips_per_host) == (shape.hosts, shape.machine, 4)
    spec = TrainingRunSpec.model_validate(training_run(shape)["spec"])
    assert sum(pool.units for pool in spec.pools) == shape.units
    assert shape.nodes >= shape.units


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        pytest.param("--case", "a,x", "--case 'a,x': of a,b,c,d,e is wanted", id="case"),
        pytest.param("--case", "", "--case '': of a,b,c,d,e is wanted", id="no-case"),
        pytest.param("--repeat", "0", "--repeat '0': a whole number from 1 to 100 is wanted", id="repeat"),
    ],
)
def test_unusable_option_is_refused_by_name(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "operator", option, value]) == 2
    assert said in capsys.readouterr().err
