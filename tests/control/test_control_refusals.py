"""What the API server itself refuses, with a message that names the field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from objects import RUN

pytestmark = [pytest.mark.control, pytest.mark.timeout(120)]
DRY = "?dryRun=All&fieldValidation=Strict"
NAMESPACE = "default"
DIMENSIONS = {"layers": 2, "width": 64, "heads": 4, "kvHeads": 2, "hidden": 128}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The run with values at dotted paths; None removes."""
    body = copy.deepcopy(RUN)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = body
        for key in parents:
            place = place[int(key)] if key.isdigit() else place.setdefault(key, {})
        if value is None:
            del place[last]
        else:
            place[last] = value
    return body


def pool(**values: Any) -> dict[str, Any]:
    return {f"spec.pools.0.{key}": value for key, value in values.items()}


REFUSED = [
    pytest.param(pool(accelerator="tpu-v9"), "spec.pools[0].accelerator", "tpu-v6e-slice", id="unknown-accelerator"),
    pytest.param(pool(topology="2x2x1"), "spec.pools[0].topology", "one of 1x1, 2x2", id="topology-of-another"),
    pytest.param(
        pool(accelerator="tpu-v5p-slice", topology="4x4"), "spec.pools[0].topology", "2x2x1", id="flat-v5p"
    ),
    pytest.param(pool(topology="2x4"), "spec.pools[0].topology", "ct6e-standard-8t", id="ambiguous-machine"),
    pytest.param(
        pool(machineType="ct5p-hightpu-4t"), "spec.pools[0].machineType", "ct6e-standard-4t", id="machine-of-another"
    ),
    pytest.param(
        pool(topology="4x4", machineType="ct6e-standard-8t"), "spec.pools[0].machineType", "2x4", id="machine-too-big"
    ),
    pytest.param(pool(slicesPerUnit=2), "spec.pools[0].slicesPerUnit", "single-slice units only", id="multislice"),
    pytest.param(pool(units=0), "spec.pools[0].units", "1", id="no-units"),
    pytest.param(pool(name="Big"), "spec.pools[0].name", "match", id="pool-name"),
    pytest.param(pool(capacity="Reservation"), "spec.pools[0].capacity", "reservationName", id="no-reservation"),
    pytest.param({"spec.pools": []}, "spec.pools", "at least 1", id="no-pools"),
    pytest.param(
        {"spec.pools": [RUN["spec"]["pools"][0], RUN["spec"]["pools"][0]]}, "spec.pools[1]", "Duplicate", id="same-pool"
    ),
    pytest.param({"spec.quorum.min": 3}, "spec.quorum.min", "units of all pools", id="quorum-above-units"),
    pytest.param({"spec.outer.overlap": 25}, "spec.outer.overlap", "at most interval", id="overlap-above-interval"),
    pytest.param({"spec.outer.fragments": 25}, "spec.outer.fragments", "at most interval", id="too-many-fragments"),
    pytest.param({"metadata.name": "r" * 46}, "metadata.name", "host names", id="long-name"),
    pytest.param({"metadata.name": "a.b"}, "metadata.name", "DNS label", id="dotted-name"),
    pytest.param({"metadata.name": "1a"}, "metadata.name", "first a letter", id="digit-first"),
    pytest.param({"spec.checkpoint.uri": "s3://bucket/run"}, "spec.checkpoint.uri", "gs://", id="other-bucket"),
    pytest.param({"spec.checkpoint.uri": "file:///tmp/run"}, "spec.checkpoint.uri", "gs://", id="checkpoint-file"),
    pytest.param({"spec.data.uri": "file:///tmp/data"}, "spec.data.uri", "gs://", id="data-file"),
    pytest.param({"spec.checkpoint.keep": 1}, "spec.checkpoint.keep", "2", id="one-checkpoint"),
    pytest.param({"spec.target": {}}, "spec.target", "globalSteps and tokens", id="no-target"),
    pytest.param({"spec.model": {}}, "spec.model", "preset and dimensions", id="no-model"),
    pytest.param({"spec.model": {"preset": "7m"}}, "spec.model.preset", "125m", id="unknown-preset"),
    pytest.param(
        {"spec.model": {"preset": "1m", "dimensions": DIMENSIONS}}, "spec.model", "exactly one", id="two-models"
    ),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "kvHeads": 3}}}, "spec.model.dimensions.heads", "kvHeads",
        id="heads",
    ),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "width": 66}}}, "spec.model.dimensions.width", "heads", id="width"
    ),
    pytest.param({"spec.recovery": {"seed": "Elsewhere"}}, "spec.recovery.seed", '"Peer"', id="seed-from-elsewhere"),
    pytest.param({"spec.syncer": {"shards": 0}}, "spec.syncer.shards", "1", id="no-shards"),
    pytest.param({"spec.syncer": {"shards": 65}}, "spec.syncer.shards", "64", id="too-many-shards"),
    pytest.param({"spec.syncer": {"tape": "None"}}, "spec.syncer.tape", '"Contributions"', id="no-tape"),
    pytest.param({"spec.outer.momentum": 1.0}, "spec.outer.momentum", "less than 1", id="momentum"),
    pytest.param({"spec.colour": "red"}, "spec.colour", "unknown field", id="unknown-field"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "says"), REFUSED)
def test_a_run_that_cannot_work_is_refused_by_name_of_the_field(api, changes, field: str, says: str) -> None:
    with pytest.raises(Exception) as refusal:
        api.create(changed(changes), NAMESPACE, DRY)
    assert type(refusal.value).__name__ == "Refusal"
    message = str(refusal.value)
    assert field in message
    assert says in message


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="least"),
        pytest.param({"metadata.name": "r" * 45}, id="longest-name"),
        pytest.param(pool(topology="2x4", machineType="ct6e-standard-8t"), id="one-host-of-eight"),
        pytest.param(pool(accelerator="tpu-v5p-slice", topology="16x16x24"), id="largest-v5p"),
        pytest.param(pool(capacity="Reservation", reservationName="mine"), id="reservation"),
        pytest.param({"spec.model": {"dimensions": DIMENSIONS}}, id="dimensions"),
        pytest.param(
            {"spec.syncer": {"storage": "10Gi", "resources": {"requests": {"cpu": 2}}}}, id="numbers"
        ),
    ],
)
def test_a_run_that_can_work_is_taken(api, changes) -> None:
    api.create(changed(changes), NAMESPACE, DRY)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"model": {"preset": "10m"}}, "spec.model", id="model"),
        pytest.param({"data": {"seed": 5}}, "spec.data", id="data"),
        pytest.param({"outer": {"interval": 48}}, "spec.outer", id="outer"),
        pytest.param({"checkpoint": {"uri": "gs://bucket/other"}}, "spec.checkpoint", id="checkpoint"),
        pytest.param({"inner": {"clipNorm": 2.0}}, "spec.inner", id="inner"),
        pytest.param({"serviceAccountName": "other"}, "spec.serviceAccountName", id="identity"),
        pytest.param({"target": {"globalSteps": 200}}, "spec.target", id="target-of-a-cosine"),
        pytest.param({"syncer": {"storage": "2Gi"}}, "spec.syncer.storage", id="volume"),
        pytest.param({"syncer": {"tape": "Contributions"}}, "spec.syncer.tape", id="tape"),
        pytest.param(
            {"syncer": {"storageClassName": "fast"}}, "spec.syncer.storageClassName", id="storage-class"
        ),
        pytest.param(
            {"pools": [{"name": "p", "accelerator": "tpu-v6e-slice", "topology": "4x4", "units": 2}]},
            "spec.pools",
            id="pools",
        ),
    ],
)
def test_what_a_run_is_made_of_cannot_be_changed(api, change, field: str) -> None:
    body = changed({"metadata.name": f"fixed-{field.rsplit('.', 1)[-1].lower()}"})
    api.create(body, NAMESPACE)
    try:
        with pytest.raises(Exception) as refusal:
            api.patch("TrainingRun", NAMESPACE, body["metadata"]["name"], {"spec": change})
        assert f"{field} cannot be changed" in str(refusal.value)
        changes = {"suspend": True, "ttlSecondsAfterFinished": 60, "recovery": {"seed": "Peer"}}
        taken = api.patch("TrainingRun", NAMESPACE, body["metadata"]["name"], {"spec": changes})
        assert taken["metadata"]["generation"] == 2
    finally:
        api.delete("TrainingRun", NAMESPACE, body["metadata"]["name"])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"image": "other:1"}, id="image"),
        pytest.param({"quorum": {"min": 2, "grace": {"fraction": 0.5}}}, id="quorum"),
        pytest.param({"checkpoint": {"intervalSteps": 7, "keep": 9}}, id="checkpoints"),
        pytest.param({"syncer": {"resources": {"requests": {"cpu": "2"}}}}, id="syncer-resources"),
        pytest.param({"units": 0}, id="to-zero"),
        pytest.param({"units": 300}, id="beyond-the-pools"),
        pytest.param({"pools": [{**RUN["spec"]["pools"][0], "units": 5, "batch": 2}]}, id="pool-in-place"),
        pytest.param(
            {"pools": [{**RUN["spec"]["pools"][0], "name": "q", "topology": "1x1"}]}, id="another-pool"
        ),
        pytest.param({"recovery": {"belowQuorum": "Fail", "belowQuorumSeconds": 5}}, id="below-quorum"),
    ],
)
def test_what_can_change_in_a_run_that_exists_is_taken(api, change) -> None:
    body = changed({"metadata.name": "live"})
    api.create(body, NAMESPACE)
    try:
        assert api.patch("TrainingRun", NAMESPACE, "live", {"spec": change})["metadata"]["generation"] == 2
    finally:
        api.delete("TrainingRun", NAMESPACE, "live")


def test_the_target_of_a_constant_schedule_can_be_moved(api) -> None:
    api.create(changed({"metadata.name": "moved", "spec.inner": {"schedule": "Constant"}}), NAMESPACE)
    try:
        taken = api.patch("TrainingRun", NAMESPACE, "moved", {"spec": {"target": {"globalSteps": 200}}})
        assert taken["spec"]["target"] == {"globalSteps": 200}
    finally:
        api.delete("TrainingRun", NAMESPACE, "moved")


def test_what_a_unit_is_cannot_be_changed_and_what_its_pods_are_made_of_can(api) -> None:
    unit = {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "LearnerUnit",
        "metadata": {"name": "fixed-p-0"},
        "spec": {
            "run": "nobody", "pool": "p", "accelerator": "tpu-v6e-slice", "topology": "2x2", "batch": 8, "stream": 0,
            "streams": 2,
        },
    }  # fmt: skip
    api.create(unit, NAMESPACE)
    try:
        for change in ({"topology": "1x1"}, {"streams": 4}, {"machineType": "ct6e-standard-4t"}):
            with pytest.raises(Exception) as refusal:
                api.patch("LearnerUnit", NAMESPACE, "fixed-p-0", {"spec": change})
            assert f"spec.{next(iter(change))} cannot be changed" in str(refusal.value)
        taken = api.patch("LearnerUnit", NAMESPACE, "fixed-p-0", {"spec": {"image": "other:1", "batch": 4}})
        assert taken["metadata"]["generation"] == 2
    finally:
        api.delete("LearnerUnit", NAMESPACE, "fixed-p-0")
