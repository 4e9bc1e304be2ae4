"""Definitions newer than the operator: an object with a field and a value that it does not know is healed all the same,
and says so. The memory world has older ones, which cannot hold a status."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import Api
from control_bench import Bench

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNIT = "r-two-0"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RUN_PARTS = {"recovery": {"spareHosts": 2, "belowQuorum": "Shrink"}}
SKEWED = [
    ("TrainingRun", "r", RUN_PARTS, ("belowQuorum: 'Shrink'", "recovery.spareHosts: 2")),
    ("LearnerUnit", UNIT, {"spareHosts": 3}, ("spec.spareHosts: 3",)),
]


@pytest.fixture
def newer(api: Api) -> Iterator[None]:
    """Definitions with a field more, and an enum of a run with a value more."""
    olds = dict[str, Any]()
    for kind in ("trainingruns", "learnerunits"):
        path = f"{DEFINITIONS}/{kind}.atoll.dev"
        olds[path] = api.call("GET", path)
        body = copy.deepcopy(olds[path])
        spec = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        recovery = spec["properties"].get("recovery", spec)["properties"]
        recovery["spareHosts"] = {"type": "integer"}
        if "belowQuorum" in recovery:
            recovery["belowQuorum"]["enum"].append("Shrink")
        api.call("PUT", path, body)
    yield
    for path, old in olds.items():
        api.call("PATCH", path, {"spec": old["spec"]}, "application/merge-patch+json")


@pytest.mark.parametrize(("kind", "name", "parts", "words"), SKEWED)
def test_a_field_and_a_value_that_the_operator_does_not_know_are_named_and_stop_no_heal(
    bench: Bench, newer: None, kind: str, name: str, parts: Any, words: tuple[str, ...]
) -> None:
    bench.operator()
    bench.learn(units=1)
    config = bench.get("ConfigMap", "r-config")["data"]
    knows = lambda: "spareHosts" in str(bench.patch(kind, name, {"spec": parts})["spec"])  # noqa: E731
    bench.until("the API server knows the new field", knows)
    message = bench.until_condition(kind, name, "VersionSkew", "True", "UnknownFields")
    assert all(word in message for word in words), message
    bench.until("an Event", lambda: message in {event["message"] for event in bench.list("Event")})
    # Another spec gives a unit other pods.
    only = lambda: len(bench.pods(UNIT)) == 2 and bench.is_whole(UNIT) and bench.run_pods(UNIT)  # noqa: E731
    bench.until("its pods run, and no others", only)
    before = bench.unit(UNIT)["incarnation"]
    bench.kubelet.fail(bench.namespace, min(bench.pods(UNIT)))
    bench.until("it heals", lambda: bench.unit(UNIT)["incarnation"] > before and bench.is_whole(UNIT))
    assert bench.get("ConfigMap", "r-config")["data"] == config
    bench.patch(kind, name, {"spec": {"recovery": None, "spareHosts": None}})
    bench.until("it is gone", lambda: bench.condition(kind, name, "VersionSkew") == ("", "", ""))
