"""Stored objects of another version: what is known is read, the rest has names, and what was made of it stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from objects import RUN, TWO_HOSTS
from pydantic import ValidationError
from run_scene import RunScene

from atoll_operator.api.learnerunit import LearnerUnit
from atoll_operator.api.stored import dropped, known
from atoll_operator.api.trainingrun import TrainingRun
from atoll_operator.plan.conditions import document

POOL = {**RUN["spec"]["pools"][0], "tolerations": [{"effect": "NoSchedule"}], "capacity": "Spot"}
STORED: dict[str, Any] = {
    "spec": {**RUN["spec"], "pools": [POOL], "recovery": {}, "outer": {}, "syncer": {}},
    "status": {"phase": "Running"},
}


def put(path: str, value: Any) -> dict[str, Any]:
    body = copy.deepcopy(STORED)
    *holders, field = (int(step) if step.isdecimal() else step for step in path.split("."))
    holder: Any = body
    for step in holders:
        holder = holder[step]
    holder[field] = value
    return body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.spares", {"units": 2}), ("spec.recovery.spareHosts", 2), ("spec.recovery.belowQuorum", "Shrink"),
        ("spec.outer.merge", "Median"), ("spec.pools.0.capacity", "Calendar"), ("spec.pools.0.zone", "a"),
        ("spec.pools.0.tolerations.0.effect", "NoImport"), ("spec.syncer.storage", {"size": "1Gi"}),
        ("spec.quorum", "all"), ("status.phase", "Paused"),
    ],
)  # fmt: skip
def test_a_field_or_a_value_of_another_version_is_left_out_and_named(path: str, value: Any) -> None:
    found, unknown = known(TrainingRun, put(path, value))
    assert unknown == {path: value}
    assert found.spec.pools[0].name == "p"


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.pools.0.units", 1_000), ("spec.data", "here"), ("spec.pools.0", 7), ("spec", [])],
)
def test_what_a_run_cannot_do_without_is_an_error(path: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        known(TrainingRun, put(path, value))


def test_several_parts_of_a_unit_are_left_out_together() -> None:
    tolerations = [{"key": "a", "operator": "Matches", "weight": 2}]
    spec = {**document(TWO_HOSTS), "spare": 1, "tolerations": tolerations}
    found, unknown = known(LearnerUnit, {"spec": spec, "status": {"phase": "Paused", "gangs": 2}})
    assert unknown.keys() == {
        "spec.spare", "spec.tolerations.0.operator", "spec.tolerations.0.weight", "status.phase"
    }  # fmt: skip
    assert (found.spec.tolerations[0].key, found.status.phase) == ("a", "Pending")


def test_a_run_keeps_what_was_made_of_parts_that_it_does_not_know() -> None:
    scene = RunScene({"p": 2})
    scene.step()
    for section, kept in (("recovery", True), ("outer", True), ("pools", False), ("spares", False)):
        scene.see(unknown={f"spec.{section}.x": 1}, configured=True)
        assert ("ConfigMap" not in {body["kind"] for body in scene.plan().apply}) is kept, section
    scene.see(configured=False)
    assert "ConfigMap" in {body["kind"] for body in scene.plan().apply}, "none is worse"
    scene.change(queueName="team").see(unknown={"spec.pools.0.capacity": "Calendar"})
    assert not scene.plan().apply_units
    assert len(scene.see(unknown={}).plan().apply_units) == 1


def test_fields_that_older_definitions_have_dropped_are_named_also_in_lists() -> None:
    sent, stored = {"restarts": [{"time": "", "inPlace": True}], "step": 1}, {"restarts": [{"time": ""}]}
    assert [*dropped(sent, stored, "status")] == ["status.restarts[].inPlace", "status.step"]
