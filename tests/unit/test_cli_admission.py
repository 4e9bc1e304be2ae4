"""`simulate plan` refuses what the API server refuses. A control test checks the same table with a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from objects import RUN
from pydantic import ValidationError
from refusals import MODELS, REMOVE, SCHEMAS, UNIT, Row, patched, rows

from atoll_cli.simulate.admission import evaluate, faults
from atoll_operator.plan.pods.topology import GENERATIONS, MAX_HOSTS, generation_of, slice_of
from atoll_runtime.contract.rules import KEY, WHOLE

Object = dict[str, Any]
OTHER_SHAPES = ("4x4x8", "12x16x28", "4x4x256", "4x4x260", "8x4x4", "4x4x6", "2x2x8", "32x32")


def rules(schema: Object) -> Iterator[Object]:
    """All CEL rules of a schema."""
    yield from schema.get(KEY, ())
    inside = [schema.get("items"), schema.get("additionalProperties"), *schema.get("properties", {}).values()]
    for child in filter(None, inside):
        yield from rules(child)


def violated(row: Row) -> list[str]:
    """The rules that refuse the row's object, or its change."""
    return list(_violated(SCHEMAS[row.body["kind"]], row.before and stored(row.before), stored(row.body)))


def stored(body: Object) -> Object:
    """The object with defaults, as the API server stores it."""
    spec = MODELS[body["kind"]].model_validate(body["spec"])
    return {**body, "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _violated(schema: Object, old: Any, new: Any) -> Iterator[str]:
    for rule in schema.get(KEY, ()):
        known = {"self": new, "oldSelf": old} if "oldSelf" in rule["rule"] else {"self": new}
        if (old is not None or "oldSelf" not in known) and not evaluate(rule["rule"], **known):
            yield rule["rule"]
    if isinstance(new, dict):
        for key, child in {**schema.get("properties", {})}.items():
            if key in new:
                yield from _violated(child, old.get(key) if isinstance(old, dict) else None, new[key])
    elif isinstance(new, list):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        for item in new:
            same = (other for other in old or () if keys and all(item[key] == other[key] for key in keys))
            yield from _violated(schema["items"], next(same, None), item)


@pytest.mark.parametrize("row", rows("refused"), ids=str)
def test_what_the_api_server_refuses_is_refused_for_the_same_field(row: Row) -> None:
    found = faults(row.body)
    assert any(row.field in line for line in found), found


@pytest.mark.parametrize("row", [*rows("taken"), *rows("taken_changes"), *rows("refused_in_pods")], ids=str)
def test_what_the_api_server_accepts_is_accepted(row: Row) -> None:
    assert faults(row.body) == []


def test_every_rule_alone_refuses_some_row() -> None:
    alone = {WHOLE["rule"]}
    for row in (*rows("refused"), *rows("refused_changes")):
        with contextlib.suppress(ValidationError, KeyError):  # the schema refuses it before any rule
            if len(found := violated(row)) == 1:
                alone |= {*found}
    assert {rule["rule"] for schema in SCHEMAS.values() for rule in rules(schema)} - alone == set()


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"apiVersion": "atoll.dev/v9"}, "apiVersion: 'atoll.dev/v9': atoll.dev/v1alpha1 is wanted"),
        ({"metadata.name": "Quick_Start"}, "metadata.name must be a DNS label"),
        ({"metadata": {}}, "metadata.name: a name is wanted"),
        ({"spec.pools.0.units": "2"}, "spec.pools[0].units: '2': Input should be a valid integer"),
        ({"spec.pools.0.unit": 2}, "spec.pools[0].unit: there is no such field; there is units"),
        ({"spec.podTemplate.env": 5}, "spec.podTemplate.env: 5: Input should be"),
        ({"spec": REMOVE}, "spec: Input should be"),
        ({"specs": {}}, "specs: there is no such field; there is spec"),
    ],
)
def test_a_fault_is_one_line(patch: dict[str, Any], words: str) -> None:
    [line] = faults(patched(RUN, patch))
    assert line.startswith(words)


def test_all_faults_are_told() -> None:
    uris = {"spec.data.uri": "s3://x", "spec.checkpoint.uri": "file:///x"}
    assert [line.partition(":")[0] for line in faults(patched(RUN, uris))] == list(uris)
    several = {"spec.quorum.min": 9, "spec.target": {}, "spec.pools.0.capacity": "Reservation"}
    assert len(faults(patched(RUN, several))) == 3


def shapes(random: Random) -> Iterator[tuple[dict[str, Any], int]]:
    """Random kinds of slices, most of which exist, each with a random number."""
    machines = [machine for generation in GENERATIONS for machine in generation.machines]
    topologies = sorted({name for machine in machines for name in machine.topologies} | {*OTHER_SHAPES})
    for _ in range(300):
        generation, known = random.choice(GENERATIONS), random.random() < 0.7
        shape = {
            "accelerator": generation.accelerator,
            "topology": random.choice(generation.topologies() if known else topologies),
        }
        if random.random() < 0.5:
            shape["machineType"] = random.choice(generation.machines if known else machines).name
        yield shape, random.choice([1, 1, 2, 3, 64])


def can_be_a_unit(shape: dict[str, Any], slices: int) -> bool:
    try:
        found = slice_of(shape["accelerator"], shape["topology"], shape.get("machineType"))
    except ValueError:
        return False
    if slices > 1 and (found.hosts == 1 or slices * found.hosts > MAX_HOSTS):
        return False
    flexible = generation_of(shape["accelerator"]).flex_start and found.hosts == 1
    return flexible or shape.get("capacity") != "FlexStart"


@pytest.mark.parametrize(
    ("base", "place", "count"),
    [(RUN, "spec.pools.0", "slicesPerUnit"), (UNIT, "spec", "slices")],
    ids=["pool", "unit"],
)
def test_slices_are_accepted_exactly_if_they_can_be_a_unit(base: Object, place: str, count: str) -> None:
    random, accepted = Random(20261121), 0
    for shape, slices in shapes(random):
        if base is RUN:
            shape["capacity"] = random.choice(["OnDemand", "Spot", "FlexStart"])
        body = patched(base, {f"{place}.{key}": value for key, value in {**shape, count: slices}.items()})
        possible = can_be_a_unit(shape, slices)
        assert (faults(body) == []) == possible, (shape, slices)
        accepted += possible
    assert 30 < accepted < 270
