"""`simulate plan` refuses what the API server refuses: the same table as the control tests hold against a real one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cel
import pytest
from pydantic import BaseModel

from atoll_cli.simulate.admission import faults
from atoll_operator.api.learnerunit import LearnerUnit
from atoll_operator.api.trainingrun import TrainingRun
from atoll_operator.crd.rules import constrain_run, constrain_unit
from atoll_operator.crd.schema import Schema, structural

TABLE = Path(__file__).parents[1] / "control" / "test_control_refusals.py"
_spec = importlib.util.spec_from_file_location("refusals", TABLE)
assert _spec is not None and _spec.loader is not None
refusals = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(refusals)
(TAKEN,) = (mark.args[1] for mark in refusals.test_a_run_that_can_work_is_taken.pytestmark)


@pytest.mark.parametrize(("changes", "field", "says"), refusals.REFUSED)
def test_what_the_api_server_refuses_is_refused_by_the_same_field(
    changes: dict[str, Any], field: str, says: str
) -> None:
    found = faults(refusals.changed(changes))
    assert any(field in line for line in found), found


@pytest.mark.parametrize(("changes", "field", "says"), refusals.REFUSED_UNITS)
def test_a_unit_that_the_api_server_refuses_is_refused_by_the_same_field(
    changes: dict[str, Any], field: str, says: str
) -> None:
    unit = refusals.UNIT
    assert faults(unit) == []
    found = faults({**unit, "spec": {**unit["spec"], **changes}})
    assert any(line.startswith(field) for line in found), found


@pytest.mark.parametrize("changes", TAKEN)
def test_what_the_api_server_takes_is_taken(changes: dict[str, Any]) -> None:
    assert faults(refusals.changed(changes)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"apiVersion": "atoll.dev/v9"}, "apiVersion: 'atoll.dev/v9': atoll.dev/v1alpha1 is wanted"),
        ({"metadata.name": "Quick_Start"}, "metadata.name must be a DNS label"),
        ({"metadata": {}}, "metadata.name: a name is wanted"),
        ({"spec.pools.0.units": "2"}, "spec.pools[0].units: '2': Input should be a valid integer"),
        ({"spec.pools.0.unit": 2}, "spec.pools[0].unit: there is no such field; there is units"),
        ({"spec.podTemplate": {"env": 5}}, "spec.podTemplate.env: 5: Input should be"),
        ({"specs": {}}, "specs: there is no such field; there is spec"),
        (
            {"spec.syncer": {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2G"}}}},
            "spec.syncer.resources.requests: requests must be at most the limits",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(changes: dict[str, Any], words: str) -> None:
    (line,) = faults(refusals.changed(changes))
    assert line.startswith(words)


def test_all_that_is_wrong_is_said() -> None:
    wrong = {"spec.data.uri": "s3://x", "spec.checkpoint.uri": "file:///x"}
    assert [line.partition(":")[0] for line in faults(refusals.changed(wrong))] == [
        "spec.data.uri",
        "spec.checkpoint.uri",
    ]
    rules = {"spec.quorum.min": 9, "spec.target": {}, "spec.pools.0.capacity": "Reservation"}
    assert len(faults(refusals.changed(rules))) == 3


@pytest.mark.parametrize("judged", [refusals.judge_pools, refusals.judge_units])
def test_slices_are_taken_exactly_where_the_plans_can_make_them(judged: Callable[[Any, int], None]) -> None:
    """A hundred of the control test's own pools and units, with this in the API server's place."""

    class Admission:
        def create(self, body: dict[str, Any], *_: str) -> None:
            if found := faults(body):
                raise ValueError("\n".join(found))

    judged(Admission(), 100)


def expressions(schema: Any) -> Iterator[str]:
    """All CEL of a schema."""
    for key, inside in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if key in ("rule", "messageExpression") and isinstance(inside, str):
            yield inside
        elif isinstance(inside, (dict, list)):
            yield from expressions(inside)


@pytest.mark.parametrize(
    ("model", "constrain"), [(TrainingRun, constrain_run), (LearnerUnit, constrain_unit)], ids=["run", "unit"]
)
def test_every_rule_of_the_crd_can_be_read(
    model: type[BaseModel], constrain: Callable[[Schema], None]
) -> None:
    schema = structural(model)
    constrain(schema)
    found = list(expressions(schema))
    assert len(found) > 50
    for expression in found:
        cel.compile(expression)
