"""`atoll bench operator`: pods as the watch reports them, the limit's pods, and figures with their targets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atoll_bench import limit
from atoll_bench.pods import Pods, touched
from atoll_bench.shapes import HUGE, MANY, SMALL, WIDE, training_run
from atoll_bench.trial import times
from atoll_bench.verdict import figures, samples
from atoll_cli.errors import CommandError
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
    """Units `a` and `b` of one host each, created at 1 s and 2 s, running since 3 s and 4 s."""
    pods = Pods()
    for at, unit in enumerate("ab", start=1):
        pods.see(line("ADDED", f"{unit}-1-0"), float(at))
    for at, unit in enumerate("ab", start=3):
        pods.see(line("MODIFIED", f"{unit}-1-0", "Running"), float(at))
    return pods


def test_a_replaced_pod_counts_for_its_unit_and_no_other() -> None:
    pods = two_running()
    pods.see(line("ADDED", "r-syncer-0", "Running", role="syncer"), 9.0)  # is not counted
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
    for change in ("MODIFIED", "DELETED"):  # a pod on its way out neither lives nor runs
        pods.see(line(change, "b-1-0", "Running", leaving=True), 14.0)
        assert (pods.alive, pods.running) == (1, 1)


def test_a_pod_that_stays_is_of_the_incarnation_that_it_was_told_and_since_then() -> None:
    pods = two_running()
    pods.see(line("MODIFIED", "a-1-0", "Running", told="2"), 10.0)
    pods.see(line("MODIFIED", "a-1-0", "Running", told="2"), 11.0)
    assert pods.units() == {"a": (2, 1), "b": (1, 1)}
    assert pods.lives["uid-a-1-0"].told == 10.0
    pods.see(line("ADDED", "a-1-1", told="2"), 12.0)
    pods.see(line("MODIFIED", "a-1-1", "Running", told="2"), 13.0)
    found = times(pods, 9.0)
    assert (found["first_created"], found["all_running"], found["last_told"]) == (3.0, 4.0, 1.0)


def pod(name: str, uid: str, told: str) -> dict[str, Any]:
    """A learner's pod as the API server has it."""
    kept = {"labels": {"atoll.dev/unit": "u"}, "annotations": {"atoll.dev/incarnation": told}}
    metadata = {"name": name, "uid": uid, "ownerReferences": [{"name": "u"}], **kept}
    spec = {"nodeName": "pool-3", "nodeSelector": {"a": "b"}, "affinity": {"podAntiAffinity": {}}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def test_the_limit_sends_what_the_operator_sent_but_for_the_owner_and_with_every_pool_known() -> None:
    sent = pod("u-1-0", "x", "1")
    assert limit.body(sent, "limit") == {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "u-1-0", "namespace": "limit",
            "labels": sent["metadata"]["labels"], "annotations": sent["metadata"]["annotations"],
        },
        "spec": {
            "nodeSelector": {"a": "b", "cloud.google.com/gke-nodepool": "pool-3"},
            "affinity": sent["spec"]["affinity"],
        },
    }  # fmt: skip


def test_the_limit_does_to_each_pod_what_became_of_it() -> None:
    before = [pod("u-1-0", "x", "1"), pod("u-1-1", "y", "1")]
    found = limit.heal(before, [pod("u-1-0", "x", "2"), pod("u-1-1", "z", "2")], "limit")
    names = [[each["metadata"]["name"] for each in part] for part in (found.gone, found.made, found.told)]
    assert names == [["u-1-1"], ["u-1-1"], ["u-1-0"]]
    assert found.told[0]["metadata"]["annotations"] == {"atoll.dev/incarnation": "2"}
    anew = limit.heal(before, [pod("u-2-0", "p", "2"), pod("u-2-1", "q", "2")], "limit")
    assert (len(anew.gone), len(anew.made), len(anew.told)) == (2, 2, 0)


def test_an_error_of_the_watch_ends_the_bench_with_its_words() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    with pytest.raises(CommandError, match="too old resource version"):
        Pods().see(json.dumps(gone).encode(), 1.0)


def test_a_figure_is_the_median_with_its_spread_and_the_ratio_of_each_round() -> None:
    rounds = []
    for seconds, limited in ((10.0, 10.0), (12.0, 8.0), (11.0, 10.0)):
        rounds += samples("a", WIDE, {"all_running": seconds, "etcd_cpu": 1.0})
        rounds += samples("a", WIDE, {"all_running": limited, "first_created": 0.1}, limit=True)
    found = {figure.name: figure for figure in figures(rounds)}
    running = found["all_running"]
    assert (running.value, running.low, running.high) == (11.0, 10.0, 12.0)
    assert (running.limit, running.ratio) == (10.0, pytest.approx(1.1))
    assert (running.target, running.ratio_target, running.met) == (None, 1.2, True)
    assert (running.units, running.pods, running.nodes, running.rounds) == (100, 1600, 100, 3)
    assert (found["etcd_cpu"].target, found["etcd_cpu"].met) == (None, None)
    assert set(found) == {"all_running", "etcd_cpu"}


@pytest.mark.parametrize("shape", [SMALL, WIDE, MANY, HUGE], ids=lambda shape: shape.name)
def test_the_shapes_are_real_slices_and_their_runs_are_valid(shape) -> None:
    offered = slice_of(shape.accelerator, shape.topology)
    assert (offered.hosts, offered.machine, offered.chips_per_host) == (shape.hosts, shape.machine, 4)
    spec = TrainingRunSpec.model_validate(training_run(shape)["spec"])
    assert sum(pool.units for pool in spec.pools) == shape.units
    assert shape.nodes >= shape.units
