"""Definitions newer or older than the operator: an object with a field and a value that it does not know, or whose
status cannot hold all of its fields, is healed all the same, and says so."""

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
def skewed(api: Api, request: Any) -> Iterator[None]:
    """Definitions that this function has changed; it gets the properties of each kind."""
    olds = dict[str, Any]()
    for kind in ("trainingruns", "learnerunits"):
        path = f"{DEFINITIONS}/{kind}.atoll.dev"
        olds[path] = api.call("GET", path)
        body = copy.deepcopy(olds[path])
        request.param(body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"])
        api.call("PUT", path, body)
    yield
    for path, old in olds.items():
        api.call("PATCH", path, {"spec": old["spec"]}, "application/merge-patch+json")


def newer(properties: dict[str, Any]) -> None:
    """A field more, and an enum of a run a value more."""
    spec = properties["spec"]
    recovery = spec["properties"].get("recovery", spec)["properties"]
    recovery["spareHosts"] = {"type": "integer"}
    if "belowQuorum" in recovery:
        recovery["belowQuorum"]["enum"].append("Shrink")


def older(properties: dict[str, Any]) -> None:
    """Fields of a unit's status less."""
    status = properties["status"]["properties"]
    if status.pop("lastFailure", None) is not None:
        del status["restarts"]["items"]["properties"]["inPlace"]


def heals(bench: Bench) -> None:
    bench.until("its pods run", lambda: bench.is_whole(UNIT) and bench.run_pods(UNIT))
    before = bench.unit(UNIT)["incarnation"]
    bench.kubelet.fail(bench.namespace, min(bench.pods(UNIT)))
    bench.until("it heals", lambda: bench.unit(UNIT)["incarnation"] > before and bench.is_whole(UNIT))


@pytest.mark.parametrize("skewed", [older], indirect=True)
def test_a_field_of_a_status_that_the_definitions_lack_is_named_and_stops_no_heal(
    bench: Bench, skewed: None
) -> None:
    bench.operator()
    bench.learn(units=1)
    heals(bench)
    told = (
        "the CRDs lack status.restarts[].inPlace, status.lastFailure; update them to this operator's version"
    )
    bench.until("an Event", lambda: told in {event["message"] for event in bench.list("Event")})
    assert "lastFailure" not in bench.unit(UNIT) and len(bench.unit(UNIT)["restarts"]) == 1


@pytest.mark.parametrize("skewed", [newer], indirect=True)
@pytest.mark.parametrize(("kind", "name", "parts", "words"), SKEWED)
def test_a_field_and_a_value_that_the_operator_does_not_know_are_named_and_stop_no_heal(
    bench: Bench, skewed: None, kind: str, name: str, parts: Any, words: tuple[str, ...]
) -> None:
    bench.operator()
    bench.learn(units=1)
    config = bench.get("ConfigMap", "r-config")["data"]
    knows = lambda: "spareHosts" in str(bench.patch(kind, name, {"spec": parts})["spec"])  # noqa: E731
    bench.until("the API server knows the new field", knows)
    message = bench.until_condition(kind, name, "VersionSkew", "True", "UnknownFields")
    assert all(word in message for word in words), message
    bench.until("an Event", lambda: message in {event["message"] for event in bench.list("Event")})
    heals(bench)
    assert bench.get("ConfigMap", "r-config")["data"] == config
    bench.patch(kind, name, {"spec": {"recovery": None, "spareHosts": None}})
    bench.until("it is gone", lambda: bench.condition(kind, name, "VersionSkew") == ("", "", ""))
