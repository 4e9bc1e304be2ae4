"""Another operator under existing runs: it restarts nothing, and older images can read their contract."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from run_scene import RunScene, pod, specs

from atoll_operator.api.group import ANNOTATION_CONTRACT, Object
from atoll_operator.api.trainingrun import RuntimeStatus
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.workloads import outdated, run_contract, syncer_digest
from atoll_runtime.contract import EXIT_VERSION, VersionMismatch, brief, parse_run

OLD: dict[str, Any] = {"image": "runtime:1", "environment": {"A": "1"}, "pull_policy": "IfNotPresent"}
NEW: dict[str, Any] = {"image": "runtime:2", "environment": {"A": "2", "B": "3"}, "pull_policy": "Always"}


def run_of(operator: dict[str, Any], **spec: Any) -> RunScene:
    """A run as an operator with these defaults sees it."""
    return RunScene({"a": 2}, operator, **({"evaluation": {}} | spec))


def statefulsets(scene: RunScene) -> dict[str, Any]:
    plan = scene.plan()
    sets = [body for body in (*plan.apply, *plan.apply_evaluator) if body["kind"] == "StatefulSet"]
    return {body["metadata"]["name"]: body["spec"]["template"] for body in sets}


CHOICES = [
    (None, None, ("runtime:2", "2")), (None, "own", ("own", "2")), (("runtime:1", ""), None, ("runtime:1", "1")),
    (("own", "own"), "own", ("own", "1")), (("runtime:1", ""), "own", ("own", "2")),
    (("own", "own"), None, ("runtime:2", "2")), (("runtime:1", ""), "runtime:1", ("runtime:1", "1")),
    (("runtime:2", "runtime:2"), None, ("runtime:2", "1")),
]  # fmt: skip
"""Image and `spec.image` of the status, `spec.image` now; image and variable of the pods."""


def test_image_and_variables_change_together_and_only_by_the_user() -> None:
    for held, asked, expected in CHOICES:
        scene = run_of(NEW, image=asked)
        if held is not None:
            known = RuntimeStatus(image=held[0], asked=held[1], environment={"A": "1"})
            scene.status = scene.status.model_copy(update={"runtime": known})
        plan = scene.plan()
        main = statefulsets(scene)["r-syncer"]["spec"]["containers"][0]
        values = {item["name"]: item.get("value") for item in main["env"]}
        assert (main["image"], values["A"]) == expected, (held, asked)
        assert {spec["image"] for spec in specs(plan).values()} == {expected[0]}


def test_contract_names_no_field_at_its_default() -> None:
    def check(section: BaseModel, fields: Any) -> None:
        for name, field in type(section).model_fields.items():
            value, key = getattr(section, name), field.alias or name
            if not field.is_required() and value == field.get_default(call_default_factory=True):
                assert key not in fields, f"{key} is at its default"
            elif isinstance(value, BaseModel):
                check(value, fields[key])

    run = run_contract(run_of(OLD, quorum={"min": 2}, inner={"zLoss": 0.5}).run())
    fields = json.loads(brief(run))
    check(run, fields)
    assert (fields["inner"], fields["quorum"]) == ({"zLoss": 0.5}, {"min": 2})
    assert parse_run(brief(run)) == run
    fields["inner"] = {"sharpness": 2}
    with pytest.raises(VersionMismatch, match=r"inner\.sharpness: Extra inputs .* set spec\.image"):
        parse_run(json.dumps(fields))


def test_digest_of_a_run_is_that_of_every_version_before() -> None:
    """A change of it, or of a default of what it covers, restarts the syncers of every run at the next upgrade."""
    stored = {
        "quorum": {"min": 1, "grace": {"fraction": 0.8, "maxSteps": 1.0}},
        "checkpoint": {"uri": "gs://bucket/run", "intervalSteps": 100, "keep": 3},
        "syncer": {"tape": "Decisions", "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}},
    }
    assert syncer_digest(run_of(OLD, **stored).run()) == "9ef2a7d06a478ba1"
    bare = {"syncer": {"resources": stored["syncer"]["resources"]}}
    assert syncer_digest(run_of(OLD, **bare).run()) == "9ef2a7d06a478ba1"


def test_syncer_pods_are_replaced_for_what_they_are_made_of() -> None:
    old = syncer_digest(run_of(OLD).run())
    changes: list[dict[str, Any]] = [
        {"image": "runtime:3"}, {"quorum": {"min": 2}}, {"podTemplate": {"env": [{"name": "X", "value": "1"}]}},
        {"syncer": {"nodeSelector": {"a": "b"}}}, {"serviceAccountName": "other"},
    ]  # fmt: skip
    assert [spec for spec in changes if syncer_digest(run_of(OLD, **spec).run()) == old] == []
    for spec in (
        {"syncer": {"storage": "9Gi", "shards": 3}},
        {"units": 1, "communication": {"codec": "int4"}},
    ):
        assert syncer_digest(run_of(OLD, **spec).run()) == old
    scene = run_of(OLD)
    scene.step()
    assert scene.change(quorum={"min": 2}).plan().apply_units == (), "units do not restart with their syncer"


def shard(number: int, contract: str = "new", ready: bool = True, going: bool = False) -> PodView:
    return pod(f"r-syncer-{number}", contract, going, ready)


DUE: list[tuple[list[PodView], list[str]]] = [
    ([shard(0), shard(1), shard(2)], []),
    ([shard(2, "old"), shard(10, "old"), shard(1)], ["r-syncer-10"]),
    ([shard(0, "old"), shard(1, "old"), shard(2, ready=False)], []),
    ([shard(0, "old"), shard(1, "old")], []),
    ([shard(0, "old"), shard(1), shard(2, going=True)], []),
    ([shard(0, "old"), shard(1, "old", False), shard(2, "old", False)], ["r-syncer-1", "r-syncer-2"]),
    ([shard(0, "old", False, going=True), shard(1), shard(2)], []),
    ([shard(0), shard(1), shard(2, "", False)], []),
]


def test_outdated_pods_are_replaced_one_by_one() -> None:
    def made_new(replicas: int) -> Object:
        template = {"metadata": {"annotations": {ANNOTATION_CONTRACT: "new"}}}
        return {"kind": "StatefulSet", "spec": {"replicas": replicas, "template": template}}

    for pods, due in DUE:
        assert [each.name for each in outdated(pods, [made_new(3)])] == due
        assert not [*outdated(pods, [made_new(0)])]


def test_syncer_that_cannot_read_its_contract_does_not_fail_the_run_but_says_why() -> None:
    message = "VersionMismatch: run.json: inner.sharpness: Extra inputs are not permitted"
    dead = pod("r-syncer-0", exit_code=EXIT_VERSION, message=message, waiting={"reason": "CrashLoopBackOff"})
    scene = run_of(OLD).unknown().see(syncer_pods=(dead,))
    assert scene.plan().status.phase == "Starting"
    assert "r-syncer-0 ended: VersionMismatch: run.json: inner.sharpness" in scene.condition("Ready")[2]
