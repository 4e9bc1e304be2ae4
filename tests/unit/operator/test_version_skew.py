"""Stored objects of another version: what is known is read, the rest has names, and what was made of it stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from objects import RUN, TWO_HOSTS
from pydantic import ValidationError
from run_scene import NOW, RunScene, condition, replicas

from atoll_operator.api.learnerunit import LearnerUnit
from atoll_operator.api.stored import dropped, known
from atoll_operator.api.trainingrun import TrainingRun
from atoll_operator.plan.conditions import document, states_of
from atoll_operator.plan.run.status import invalid

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


def test_a_run_that_could_not_be_read_for_a_while_is_still_suspended_with_its_checkpoint() -> None:
    scene = RunScene({"p": 0}, suspend=True)
    scene.syncer(checkpoint={"newest_step": 25, "current": True}).ordered().step()
    scene.unknown().status = before = scene.status
    assert condition(before, "Suspended")[:2] == ("True", "Suspended")
    scene.status = invalid(before, 1, "pools.0.units", NOW + 3600)
    assert condition(scene.status, "Suspended") == condition(before, "Suspended")
    assert replicas(scene.step(3601)) == 0
    assert condition(scene.status, "Suspended") == condition(before, "Suspended")


@pytest.mark.parametrize(("phase", "ended"), [("Finished", "Complete"), ("Failed", "Failed")])
def test_a_run_that_could_not_be_read_for_a_while_still_says_how_it_ended(phase: str, ended: str) -> None:
    scene = RunScene().syncer(phase, message="why", final_checkpoint="gs://bucket/25")
    before = scene.step().status
    assert before.phase == ended
    scene.status = invalid(before, 1, "pools.0.units", NOW + 3600)
    assert condition(scene.status, ended) == condition(before, ended)
    after = scene.step(3601).status
    assert (states_of(after.conditions), after.message) == (states_of(before.conditions), before.message)


def test_fields_that_older_definitions_have_dropped_are_named_also_in_lists() -> None:
    sent, stored = {"restarts": [{"time": "", "inPlace": True}], "step": 1}, {"restarts": [{"time": ""}]}
    assert [*dropped(sent, stored, "status")] == ["status.restarts[].inPlace", "status.step"]
