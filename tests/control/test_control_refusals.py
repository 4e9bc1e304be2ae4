"""What the API server itself refuses, with a message that names the field."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest
from apiserver import Refusal
from objects import RUN

from atoll_operator.plan.pods.topology import GENERATIONS, check_slices, generation_of, slice_of

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
DRY = "?dryRun=All&fieldValidation=Strict"
NAMESPACE = "default"
DIMENSIONS = {"layers": 3, "width": 64, "heads": 4, "kvHeads": 2, "hidden": 128}
EXPERTS = {"experts": 8, "expertHidden": 64}
LONG_KEY = f"{'a' * 254}/b"


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


def variable(**content: Any) -> dict[str, Any]:
    return {"spec.podTemplate": {"env": [content]}}


def volume(mount: dict[str, Any] | None = None, **content: Any) -> dict[str, Any]:
    """One volume, of a claim where nothing else is said, and its mount."""
    one = {"name": "corpus", **(content or CLAIM)}
    return {"spec.podTemplate": {"volumes": [one], "volumeMounts": [{**MOUNT, **(mount or {})}]}}


CLAIM = {"persistentVolumeClaim": {"claimName": "corpus", "readOnly": True}}
MOUNT = {"name": "corpus", "mountPath": "/mnt/corpus"}
REFUSED = [
    pytest.param(
        variable(name="TPU_WORKER_ID", value="7"), "spec.podTemplate.env[0].name",
        "the operator sets", id="our-variable",
    ),
    pytest.param(
        variable(name="A", value="", valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}), "spec.podTemplate.env[0]",
        "exactly one of value and valueFrom", id="two-values",
    ),
    pytest.param(
        variable(name="A", valueFrom={}), "spec.podTemplate.env[0].valueFrom",
        "exactly one of secretKeyRef", id="no-source",
    ),
    pytest.param(variable(name="a-b", value=""), "spec.podTemplate.env[0].name", "should match", id="variable-name"),
    pytest.param(
        {"spec.podTemplate": {"labels": {"atoll.dev/run": "x"}}}, "spec.podTemplate.labels",
        "the operator sets", id="our-label",
    ),
    pytest.param(
        {"spec.podTemplate": {"annotations": {"a b": "x"}}}, "spec.podTemplate.annotations",
        "example.com/team", id="annotation",
    ),
    pytest.param(
        volume(name="journal", **CLAIM), "spec.podTemplate.volumes[0].name",
        "journal: must be another than", id="our-volume",
    ),
    pytest.param(
        volume(name="Corpus", **CLAIM), "spec.podTemplate.volumes[0].name", "should match", id="volume-name"
    ),
    pytest.param(
        volume(secret={"secretName": "s"}, **CLAIM), "spec.podTemplate.volumes[0]", "exactly one of",
        id="volume-of-two-sources",
    ),
    pytest.param(volume(name="corpus"), "spec.podTemplate.volumes[0]", "exactly one of", id="volume-of-no-source"),
    pytest.param(
        volume(hostPath={"path": "/"}, **CLAIM), "spec.podTemplate.volumes[0].hostPath", "unknown field", id="host-path"
    ),
    pytest.param(
        volume(persistentVolumeClaim={"claimName": "A"}),
        "spec.podTemplate.volumes[0].persistentVolumeClaim.claimName", "should match", id="claim-name",
    ),
    pytest.param(
        volume(csi={"driver": "a b"}), "spec.podTemplate.volumes[0].csi.driver", "should match", id="csi-driver"
    ),
    pytest.param(
        volume(emptyDir={"sizeLimit": "1GiB"}), "spec.podTemplate.volumes[0].emptyDir.sizeLimit", "should match",
        id="size-of-no-unit",
    ),
    pytest.param(
        volume(emptyDir={"medium": "HugePages"}), "spec.podTemplate.volumes[0].emptyDir.medium", '"Memory"',
        id="huge-pages",
    ),
    pytest.param(
        volume(secret={"secretName": "s", "defaultMode": 0o1000}),
        "spec.podTemplate.volumes[0].secret.defaultMode", "less than or equal to 511", id="sticky-files",
    ),
    pytest.param(
        volume(configMap={"name": "c", "items": [{"key": "k", "path": "a/../../b"}]}),
        "spec.podTemplate.volumes[0].configMap.items[0].path", "a/../../b: must be a path without", id="file-above",
    ),
    pytest.param(
        {"spec.podTemplate": {"volumes": [{"name": "v", "emptyDir": {}}] * 2}}, "spec.podTemplate.volumes[1]",
        "Duplicate", id="same-volume",
    ),
    pytest.param(
        {"spec.podTemplate": {"volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(17)]}},
        "spec.podTemplate.volumes", "at most 16", id="seventeen-volumes",
    ),
    pytest.param(
        volume({"name": "other"}), "spec.podTemplate.volumeMounts",
        "other: must be the name of one of volumes", id="mount-of-no-volume",
    ),
    pytest.param(
        {"spec.podTemplate": {"volumes": [{"name": "corpus", **CLAIM}], "volumeMounts": [MOUNT, MOUNT]}},
        "spec.podTemplate.volumeMounts[1]", "Duplicate", id="same-mount",
    ),
    *(
        pytest.param(
            volume({"mountPath": path}), "spec.podTemplate.volumeMounts[0].mountPath", f"{path}: {says}",
            id=f"mount-at-{path}",
        )
        for says, paths in {
            "must be an absolute path": ("mnt", "/", "/mnt/", "/mnt//a", "/mnt/../etc", "/mnt/./a", "/a:b", "/mnt/.."),
            "must be neither a path": (
                *("/tmp", "/tmp/cache", "/etc", "/etc/atoll/run", "/etc/atoll/tls/x", "/etc/atoll/pod", "/var/lib"),
                *("/var/lib/atoll/journal", "/dev", "/dev/termination-log", "/proc/1", "/sys"),
            ),
        }.items()
        for path in paths
    ),
    pytest.param(
        volume({"subPath": "/tokens"}), "spec.podTemplate.volumeMounts[0].subPath",
        "/tokens: must be a relative path", id="absolute-sub-path",
    ),
    pytest.param(
        volume({"subPath": "a/.."}), "spec.podTemplate.volumeMounts[0].subPath",
        "a/..: must be a relative path", id="sub-path-above",
    ),
    *(
        pytest.param(
            {**volume(), "spec.data.uri": uri}, "spec.data.uri", f"{uri}: must lie below a mountPath",
            id=f"data-at-{uri}",
        )
        for uri in ("file:///mnt", "file:///mnt/corpus2", "file:///srv/mnt/corpus")
    ),
    pytest.param(
        {**volume(), "spec.data.uri": "file:///mnt/corpus/../x"}, "spec.data.uri", "file:", id="data-above-its-mount"
    ),
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
    pytest.param(pool(slicesPerUnit=2), "spec.pools[0].slicesPerUnit", "must be 1 for slices of one host", id="slices"),
    pytest.param(
        pool(slicesPerUnit=2, topology="2x4", machineType="ct6e-standard-8t"), "spec.pools[0].slicesPerUnit",
        "machineType ct6e-standard-8t", id="slices-of-eight-chips",
    ),
    pytest.param(
        pool(slicesPerUnit=2, accelerator="tpu-v5-lite-device", topology="2x4"), "spec.pools[0].slicesPerUnit",
        "must be 1", id="slices-of-a-device",
    ),
    pytest.param(
        pool(slicesPerUnit=65, topology="4x4"), "spec.pools[0].slicesPerUnit", "less than or equal to 64",
        id="too-many-slices",
    ),
    pytest.param(
        pool(slicesPerUnit=3, accelerator="tpu7x", topology="16x24x24"), "spec.pools[0].slicesPerUnit",
        "at most 4096 hosts", id="too-many-hosts",
    ),
    pytest.param(
        pool(accelerator="tpu-v5p-slice", topology="8x4x4"), "spec.pools[0].topology", "A <= B <= C",
        id="cubes-out-of-order",
    ),
    pytest.param(
        pool(accelerator="tpu-v5p-slice", topology="16x24x24"), "spec.pools[0].topology", "at most 140 cubes",
        id="too-many-cubes",
    ),
    pytest.param(
        pool(accelerator="tpu7x", topology="4x4x6"), "spec.pools[0].topology", "multiples of 4", id="half-a-cube"
    ),
    pytest.param(
        pool(accelerator="tpu7x", topology="4x4x999"), "spec.pools[0].topology", "2x2x1", id="a-very-long-side"
    ),
    pytest.param(pool(topology="4 x 4"), "spec.pools[0].topology", "match", id="spaced-topology"),
    pytest.param(
        pool(capacity="FlexStart", topology="4x4"), "spec.pools[0].capacity", "slices of one host only", id="flex-hosts"
    ),
    pytest.param(
        pool(capacity="FlexStart", topology="2x4", machineType="ct6e-standard-4t"), "spec.pools[0].capacity",
        "slices of one host only", id="flex-two-hosts",
    ),
    pytest.param(
        pool(capacity="FlexStart", accelerator="tpu7x", topology="2x2x1"), "spec.pools[0].capacity",
        "FlexStart: is not offered for tpu7x", id="flex-tpu7x",
    ),
    pytest.param(
        pool(capacity="FlexStart", reservationName="mine"), "spec.pools[0].capacity", "reservationName",
        id="flex-reservation",
    ),
    pytest.param(
        pool(capacity="Reservation", reservationName="my/block"), "spec.pools[0].reservationName", "match",
        id="reservation-name",
    ),
    pytest.param(
        pool(nodeSelector={"team": "a b"}), "spec.pools[0].nodeSelector.team", "match", id="selector-of-no-label"
    ),
    *(
        pytest.param(changes, field, says, id=f"long-domain-of-{field}")
        for changes, field, says in (
            (pool(nodeSelector={LONG_KEY: "a"}), "spec.pools[0].nodeSelector", "a domain of at most 253"),
            ({"spec.podTemplate": {"labels": {LONG_KEY: "a"}}}, "spec.podTemplate.labels", "a domain of at most 253"),
            (
                {"spec.podTemplate": {"annotations": {LONG_KEY: "a"}}}, "spec.podTemplate.annotations",
                "a domain of at most 253",
            ),
        )
    ),
    *(
        pytest.param(
            pool(resources={"limits": {name: 1, "cpu": 1}}), "spec.pools[0].resources.limits", "such as hugepages-2Mi",
            id=f"resource-{name[:20]}",
        )
        for name in (
            *("pods", "hugepages-", "hugepages-large", "hugepages-2", "kubernetes.io/gadget", "a.kubernetes.io/gadget"),
            *("requests.example.com/gadget", "google.com/tpu", f"{'a' * 245}/gadget"),
        )
    ),
    *(
        pytest.param(
            pool(resources={"limits": {"example.com/gadget": amount}}), "spec.pools[0].resources.limits",
            "with a domain must be whole numbers", id=f"{amount}-gadgets",
        )
        for amount in ("1.5", "1500m", "1e3", ".5")
    ),
    *(
        pytest.param(
            pool(resources={"limits": {"hugepages-2Mi": amount, "memory": "1Gi"}}), "spec.pools[0].resources.limits",
            "whole pages", id=f"huge-pages-in-{amount}",
        )
        for amount in ("3Mi", "1", "4.5Mi", "100m")
    ),
    *(
        pytest.param(
            pool(resources={"requests": {name: 4194304, "cpu": 1}, **limits}), "spec.pools[0].resources",
            "with a domain and of huge pages must be the same as their limits", id=f"{name}-of-{what}-limit",
        )
        for name in ("example.com/gadget", "hugepages-2Mi")
        for what, limits in {"no": {}, "another": {"limits": {name: 8388608}}}.items()
    ),
    pytest.param(
        pool(resources={"limits": {"hugepages-2Mi": "4Mi"}}), "spec.pools[0].resources",
        "huge pages need cpu or memory", id="huge-pages-alone",
    ),
    *(
        pytest.param({"spec.syncer": {"storage": amount}}, "spec.syncer.storage", says, id=f"storage-of-{amount}")
        for amount, says in (
            (0, "above 0"), ("0", "above 0"), ("0.0Gi", "above 0"), ("0e5", "above 0"), ("1e999", "match"),
            ("1e99999999999999999999", "match"),
        )
    ),
    pytest.param({"spec.inner": {"mesh": {"tensor": 8}}}, "spec.inner.mesh", "devices of one slice", id="wide-tensor"),
    pytest.param({"spec.inner": {"mesh": {"expert": 3}}}, "spec.inner.mesh", "those of a unit", id="odd-experts"),
    pytest.param(
        {**pool(topology="4x4", slicesPerUnit=2), "spec.inner": {"mesh": {"tensor": 32}}}, "spec.inner.mesh",
        "devices of one slice", id="tensor-over-two-slices",
    ),
    pytest.param(pool(units=0), "spec.pools[0].units", "1", id="no-units"),
    pytest.param(pool(name="Big"), "spec.pools[0].name", "match", id="pool-name"),
    pytest.param(pool(capacity="Reservation"), "spec.pools[0].capacity", "reservationName", id="no-reservation"),
    pytest.param({"spec.pools": []}, "spec.pools", "at least 1", id="no-pools"),
    pytest.param(
        {"spec.pools": [RUN["spec"]["pools"][0], RUN["spec"]["pools"][0]]}, "spec.pools[1]", "Duplicate", id="same-pool"
    ),
    pytest.param({"spec.quorum.min": 3}, "spec.quorum.min", "units of all pools", id="quorum-above-units"),
    pytest.param({"spec.pools.0.units": 3.0}, "spec.pools[0].units", "expected int, got float64", id="float-units"),
    pytest.param({"spec.outer.overlap": 25}, "spec.outer.overlap", "at most interval", id="overlap-above-interval"),
    pytest.param({"spec.outer.fragments": 25}, "spec.outer.fragments", "at most interval", id="too-many-fragments"),
    pytest.param({"metadata.name": "r" * 46}, "metadata.name", "host names", id="long-name"),
    pytest.param(
        {"metadata.name": "r" * 43, "spec.evaluation": {}}, "metadata.name", "at most 42 characters in a run with",
        id="long-name-of-an-evaluated-run",
    ),
    pytest.param(
        pool(nodeSelector={f"k{n}": "v" for n in range(17)}), "spec.pools[0].nodeSelector", "at most 16", id="selectors"
    ),
    pytest.param({"metadata.name": "a.b"}, "metadata.name", "DNS label", id="dotted-name"),
    pytest.param({"metadata.name": "1a"}, "metadata.name", "first a letter", id="digit-first"),
    pytest.param({"spec.checkpoint.uri": "s3://bucket/run"}, "spec.checkpoint.uri", "gs://", id="other-bucket"),
    pytest.param({"spec.checkpoint.uri": "file:///tmp/run"}, "spec.checkpoint.uri", "gs://", id="checkpoint-file"),
    pytest.param({"spec.data.uri": "file:///tmp/data"}, "spec.data.uri", "gs://", id="data-file"),
    pytest.param({"spec.checkpoint.keep": 1}, "spec.checkpoint.keep", "2", id="one-checkpoint"),
    pytest.param({"spec.target": {}}, "spec.target", "globalSteps and tokens", id="no-target"),
    pytest.param({"spec.model": {}}, "spec.model", "preset, dimensions and task", id="no-model"),
    pytest.param({"spec.model": {"preset": "7m"}}, "spec.model.preset", "125m", id="unknown-preset"),
    pytest.param(
        {"spec.model": {"preset": "1m", "dimensions": DIMENSIONS}}, "spec.model", "exactly one", id="two-models"
    ),
    pytest.param({"spec.model": {"preset": "1m", "task": "a:b"}}, "spec.model", "exactly one", id="preset-and-task"),
    pytest.param({"spec.model": {"task": "no attribute"}}, "spec.model.task", "should match", id="task-of-no-module"),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "experts": 4}}}, "spec.model.dimensions.expertHidden",
        "needed with experts", id="experts-of-no-size",
    ),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "experts": 2, "expertHidden": 64, "expertsPerToken": 3}}},
        "spec.model.dimensions.expertsPerToken", "at most experts", id="too-many-experts-a-token",
    ),
    pytest.param(
        {"spec.inner": {"optimizer": {"name": "lion", "arguments": {"b1": "high"}}}},
        "spec.inner.optimizer.arguments.b1", "number", id="optimizer-argument",
    ),
    pytest.param(
        {"spec.inner": {"optimizer": {"name": "lbfgs"}}}, "spec.inner.optimizer.name", '"adagrad"', id="optimizer-name"
    ),
    pytest.param(
        {**pool(topology="4x4"), "spec.inner": {"mesh": {"tensor": 4}}}, "spec.inner.mesh.tensor",
        "must divide heads, kvHeads and hidden of model.preset: 2 for 250k, 1m, ", id="tensor-over-a-preset",
    ),
    pytest.param(
        {"spec.inner": {"mesh": {"expert": 2}}}, "spec.inner.mesh.expert", "1 for 250k, 1m, ",
        id="experts-of-a-dense-preset",
    ),
    pytest.param(
        {**pool(topology="4x4"), "spec.model": {"preset": "moe-1m"}, "spec.inner": {"mesh": {"expert": 16}}},
        "spec.inner.mesh.expert", "8 for moe-1m, moe-10m; 16 for", id="more-chips-than-experts",
    ),
    pytest.param(
        {"spec.outer": {"fragments": 48, "interval": 48}}, "spec.outer.fragments",
        "at most the pieces of model.preset: 47 for 250k, 1m; 54 for", id="fragments-of-a-preset",
    ),
    pytest.param(
        {"spec.syncer": {"shards": 48}}, "spec.syncer.shards",
        "at most the pieces of model.preset: 47 for 250k, 1m; 54 for", id="shards-of-a-preset",
    ),
    *(
        pytest.param(
            {**pool(topology="4x4"), "spec.model": {"dimensions": {**DIMENSIONS, **EXPERTS, **sizes}},
             "spec.inner": {"mesh": {"tensor": 4}}},
            "spec.inner.mesh.tensor", "must divide heads, kvHeads, hidden and expertHidden", id=f"tensor-over-{name}",
        )
        for name, sizes in {
            "heads": {"heads": 2}, "kvHeads": {}, "hidden": {"kvHeads": 4, "hidden": 130},
            "expertHidden": {"kvHeads": 4, "expertHidden": 66},
        }.items()
    ),
    *(
        pytest.param(
            {"spec.model": {"dimensions": {**DIMENSIONS, **sizes}}, "spec.inner": {"mesh": {"expert": 4}}},
            "spec.inner.mesh.expert", "must divide experts of model.dimensions, and be 1 without", id=f"mesh-of-{name}",
        )
        for name, sizes in {"no-experts": {}, "six-experts": {**EXPERTS, "experts": 6}}.items()
    ),
    *(
        pytest.param(
            {"spec.model": {"dimensions": {**DIMENSIONS, **sizes}}, **{
                f"spec.{field}": {name: most + 1, **({"interval": 64} if name == "fragments" else {})}
                for field, name in (("outer", "fragments"), ("syncer", "shards"))
            }},
            field, "at most the pieces of the model", id=f"{most + 1}-{field}",
        )
        for field in ("spec.outer.fragments", "spec.syncer.shards")
        for most, sizes in {29: {}, 30: {"tied": False}, 41: EXPERTS, 42: {"tied": False, **EXPERTS}}.items()
    ),
    pytest.param({"spec.inner": {"mesh": {"tensor": 0}}}, "spec.inner.mesh.tensor", "1", id="mesh-of-nothing"),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "kvHeads": 3}}}, "spec.model.dimensions.heads", "kvHeads",
        id="heads",
    ),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "width": 66}}}, "spec.model.dimensions.width",
        "even multiple of heads", id="width",
    ),
    pytest.param(
        {"spec.model": {"dimensions": {**DIMENSIONS, "width": 60}}}, "spec.model.dimensions.width",
        "even multiple of heads", id="odd-heads",
    ),
    pytest.param({"spec.recovery": {"seed": "Elsewhere"}}, "spec.recovery.seed", '"Peer"', id="seed-from-elsewhere"),
    pytest.param({"spec.units": 257}, "spec.units", "256 each", id="more-units-than-pools-can-have"),
    pytest.param({"spec.syncer": {"shards": 0}}, "spec.syncer.shards", "1", id="no-shards"),
    pytest.param({"spec.syncer": {"shards": 65}}, "spec.syncer.shards", "64", id="too-many-shards"),
    pytest.param({"spec.syncer": {"tape": "None"}}, "spec.syncer.tape", '"Contributions"', id="no-tape"),
    pytest.param({"spec.outer.momentum": 1.0}, "spec.outer.momentum", "less than 1", id="momentum"),
    pytest.param({"spec.colour": "red"}, "spec.colour", "unknown field", id="unknown-field"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "says"), REFUSED)
def test_a_run_that_cannot_work_is_refused_by_name_of_the_field(api, changes, field: str, says: str) -> None:
    with pytest.raises(Refusal) as refusal:
        api.create(changed(changes), NAMESPACE, DRY)
    message = str(refusal.value)
    assert field in message
    assert says in message


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="least"),
        pytest.param({"metadata.name": "r" * 45}, id="longest-name"),
        pytest.param(pool(topology="2x4", machineType="ct6e-standard-8t"), id="one-host-of-eight"),
        pytest.param(pool(accelerator="tpu-v5p-slice", topology="16x20x28"), id="largest-v5p"),
        pytest.param(pool(accelerator="tpu-v5p-slice", topology="4x4x256"), id="longest-v5p"),
        pytest.param(pool(accelerator="tpu7x", topology="16x24x24"), id="largest-tpu7x"),
        pytest.param(pool(accelerator="tpu-v5-lite-device", topology="2x4"), id="device"),
        pytest.param(pool(topology="16x16", slicesPerUnit=64), id="most-hosts"),
        pytest.param(pool(topology="2x4", machineType="ct6e-standard-4t", slicesPerUnit=2), id="two-slices"),
        pytest.param(pool(capacity="FlexStart"), id="flex-start"),
        pytest.param(
            {"spec.model": {"preset": "moe-1m"}, "spec.inner": {"mesh": {"tensor": 2, "expert": 2}}},
            id="mesh",
        ),
        pytest.param(
            {
                **pool(topology="4x4"),
                "spec.model": {"dimensions": {**DIMENSIONS, **EXPERTS, "kvHeads": 4}},
                "spec.inner": {"mesh": {"tensor": 4, "expert": 4}},
            },
            id="mesh-of-dimensions",
        ),
        pytest.param(
            {
                **pool(topology="4x4"),
                "spec.model": {"task": "my.models:Task"},
                "spec.inner": {"mesh": {"tensor": 16}},
                "spec.outer": {"fragments": 1000, "interval": 1000},
            },
            id="mesh-and-fragments-of-a-task",
        ),
        pytest.param(
            {"spec.outer": {"fragments": 47, "interval": 47}, "spec.syncer": {"shards": 47}},
            id="all-pieces-of-a-preset",
        ),
        *(
            pytest.param(
                {
                    "spec.model": {"dimensions": {**DIMENSIONS, **sizes}},
                    "spec.outer": {"fragments": pieces, "interval": pieces},
                    "spec.syncer": {"shards": pieces},
                },
                id=f"all-{pieces}-pieces",
            )
            for pieces, sizes in (
                (29, {}),
                (30, {"tied": False}),
                (41, EXPERTS),
                (42, {"tied": False, **EXPERTS}),
            )
        ),
        *(
            pytest.param({**volume(), "spec.data.uri": f"file:///mnt/corpus{folder}"}, id=f"data{folder}")
            for folder in ("", "/", "/tokens/v1", "/tokens/.v1/")
        ),
        *(
            pytest.param(volume({"mountPath": path}), id=f"mount-at-{path}")
            for path in ("/dev/shm", "/etc/ssl/certs", "/tmpfs", "/var/lib/atoll2", "/etc/atoll/.ca")
        ),
        pytest.param(volume({"subPath": "tokens/v1/", "readOnly": True}), id="sub-path"),
        pytest.param(volume(csi={"driver": "gcsfuse.csi.storage.gke.io"}), id="csi"),
        pytest.param(volume(emptyDir={}), id="scratch"),
        pytest.param(
            {"spec.podTemplate": {"volumes": [{"name": "gke-gcsfuse-cache", "emptyDir": {"sizeLimit": 5}}]}},
            id="volume-of-a-side-car-that-we-do-not-mount",
        ),
        pytest.param(
            {
                **pool(topology="4x4", slicesPerUnit=2),
                "spec.model": {
                    "dimensions": {**DIMENSIONS, **EXPERTS, "width": 128, "heads": 16, "kvHeads": 16}
                },
                "spec.inner": {"mesh": {"tensor": 16, "expert": 2}},
            },
            id="experts-over-two-slices",
        ),
        pytest.param(
            {
                **pool(accelerator="tpu7x", topology="2x2x1"),
                "spec.model": {"preset": "9b"},
                "spec.inner": {"mesh": {"tensor": 8}},
            },
            id="tensor-over-half-chips",
        ),
        pytest.param(
            pool(capacity="FlexStart", topology="2x4", machineType="ct6e-standard-8t"),
            id="flex-start-of-eight",
        ),
        pytest.param(pool(capacity="Reservation", reservationName="mine"), id="reservation"),
        pytest.param({"spec.model": {"dimensions": DIMENSIONS}}, id="dimensions"),
        pytest.param({"spec.model": {"dimensions": {**DIMENSIONS, **EXPERTS}}}, id="experts"),
        pytest.param({"spec.model": {"task": "my.models:Task"}}, id="task"),
        pytest.param(
            {"spec.inner": {"optimizer": {"name": "lion", "arguments": {"b1": 0.95, "weight_decay": 1}}}},
            id="optimizer",
        ),
        pytest.param(pool(nodeSelector={f"{'a' * 253}/{'b' * 63}": "a"}), id="longest-key"),
        pytest.param(
            pool(
                resources={
                    "requests": {"cpu": 1, "example.com/gadget": 2},
                    "limits": {"example.com/gadget": 2, "hugepages-2Mi": "4Mi", f"{'a' * 244}/b": "1k"},
                }
            ),
            id="resources",
        ),
        *(
            pytest.param({"spec.syncer": {"storage": amount}}, id=f"storage-of-{amount}")
            for amount in (1, "0.001", "1e-9", "1e99", "9" * 32, "." + "9" * 31, "9" * 30 + "Ei", "1.")
        ),
        pytest.param(
            {"spec.syncer": {"storage": "10Gi", "resources": {"requests": {"cpu": 2}}}}, id="numbers"
        ),
    ],
)
def test_a_run_that_can_work_is_taken(api, changes) -> None:
    api.create(changed(changes), NAMESPACE, DRY)


def plans_can_make(shape: dict[str, Any], slices: int) -> bool:
    """Whether the operator could make units of so many such slices."""
    try:
        found = slice_of(shape["accelerator"], shape["topology"], shape.get("machineType"))
        check_slices(found, slices, "slices")
    except ValueError:
        return False
    offered = generation_of(shape["accelerator"]).flex_start and found.hosts == 1
    return offered or shape.get("capacity") != "FlexStart"


def test_the_api_server_takes_exactly_the_pools_that_the_plans_can_make(api) -> None:
    judge_pools(api, 300)


def test_the_api_server_takes_exactly_the_units_that_the_plans_can_make(api) -> None:
    judge_units(api, 300)


def judge_pools(api: Any, count: int) -> None:
    """Offers so many random pools; fails where the verdict is not the plans'."""
    random = Random(20261121)

    def bodies() -> Iterator[tuple[dict[str, Any], bool]]:
        for shape, slices in shapes(random, count):
            shape["capacity"] = random.choice(["OnDemand", "Spot", "FlexStart"])
            yield changed(pool(**shape, slicesPerUnit=slices)), plans_can_make(shape, slices)

    judge(api, bodies(), "spec.pools[0]")


def judge_units(api: Any, count: int) -> None:
    """The same with units that are made by hand."""
    judge(
        api,
        (
            ({**UNIT, "spec": {**UNIT["spec"], **shape, "slices": slices}}, plans_can_make(shape, slices))
            for shape, slices in shapes(Random(20261122), count)
        ),
        "spec.",
    )


def judge(api: Any, bodies: Iterable[tuple[dict[str, Any], bool]], place: str) -> None:
    """Each body with whether it can be; at least a tenth can be, and a tenth cannot."""
    verdicts = []
    for body, possible in bodies:
        try:
            api.create(body, NAMESPACE, DRY)
        except Exception as refusal:
            assert not possible, f"{body}: {refusal}"
            assert place in str(refusal)
        else:
            assert possible, body
        verdicts.append(possible)
    assert 0.1 < sum(verdicts) / len(verdicts) < 0.9


def shapes(random: Random, count: int) -> Iterator[tuple[dict[str, Any], int]]:
    """So many kinds of slices and how many of each, most of which could be."""
    machines = [machine for generation in GENERATIONS for machine in generation.machines]
    topologies = sorted({name for machine in machines for name in machine.topologies})
    topologies += [
        "4x4x8",
        "4x8x8",
        "8x8x8",
        "12x16x28",
        "4x4x256",
        "4x4x260",
        "8x4x4",
        "4x4x6",
        "2x2x8",
        "32x32",
    ]
    for _ in range(count):
        generation = random.choice(GENERATIONS)
        known = random.random() < 0.7
        named = random.choice(generation.machines if known else machines).name
        shape = {
            "accelerator": generation.accelerator,
            "topology": random.choice(generation.topologies() if known else topologies),
            **({"machineType": named} if random.random() < 0.5 else {}),
        }
        yield shape, random.choice([1, 1, 2, 3, 64])


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
        pytest.param(
            {"pools": [{**RUN["spec"]["pools"][0], "capacity": "Spot"}]}, "spec.pools", id="capacity"
        ),
    ],
)
def test_what_a_run_is_made_of_cannot_be_changed(api, change, field: str) -> None:
    body = changed({"metadata.name": f"fixed-{field.rsplit('.', 1)[-1].lower()}"})
    api.create(body, NAMESPACE)
    try:
        with pytest.raises(Refusal) as refusal:
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
        pytest.param({"units": 200}, id="beyond-the-pools"),
        pytest.param({"pools": [{**RUN["spec"]["pools"][0], "units": 5, "batch": 2}]}, id="pool-in-place"),
        pytest.param(
            {"pools": [{**RUN["spec"]["pools"][0], "name": "q", "topology": "1x1"}]}, id="another-pool"
        ),
        pytest.param(
            {"pools": [{**RUN["spec"]["pools"][0], "slicesPerUnit": 1, "capacity": "OnDemand"}]},
            id="what-goes-without-saying",
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


def test_what_went_without_saying_need_not_be_said_again(api) -> None:
    """An API server that had defaults for it has written it into every run."""
    said = {**RUN["spec"]["pools"][0], "slicesPerUnit": 1, "capacity": "OnDemand"}
    api.create(changed({"metadata.name": "said", "spec.pools": [said]}), NAMESPACE)
    try:
        taken = api.patch("TrainingRun", NAMESPACE, "said", {"spec": {"pools": RUN["spec"]["pools"]}})
        assert taken["spec"]["pools"] == RUN["spec"]["pools"]
    finally:
        api.delete("TrainingRun", NAMESPACE, "said")


def test_the_api_server_keeps_lists_as_they_were_applied(api) -> None:
    tolerations = [{"key": "dedicated", "value": "atoll"}, {"operator": "Exists", "effect": "NoExecute"}]
    template = {
        "volumes": [
            {"name": "corpus", "persistentVolumeClaim": {"claimName": "corpus"}},
            {"name": "bucket", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}},
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "token", "secret": {"secretName": "token"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "volumeMounts": [{"name": "corpus", "mountPath": "/mnt/corpus"}],
        "env": [{"name": "XLA_FLAGS", "value": ""}],
    }
    spec = changed({"spec.podTemplate": template, "spec.syncer": {"tolerations": tolerations}})["spec"]
    spec["pools"][0]["tolerations"] = tolerations
    taken = api.create({**RUN, "spec": spec}, NAMESPACE, DRY)["spec"]
    assert taken["pools"] == spec["pools"]
    assert taken["syncer"]["tolerations"] == tolerations
    assert {name: taken["podTemplate"][name] for name in template} == template


def test_the_target_of_a_constant_schedule_can_be_moved(api) -> None:
    api.create(changed({"metadata.name": "moved", "spec.inner": {"schedule": "Constant"}}), NAMESPACE)
    try:
        taken = api.patch("TrainingRun", NAMESPACE, "moved", {"spec": {"target": {"globalSteps": 200}}})
        assert taken["spec"]["target"] == {"globalSteps": 200}
    finally:
        api.delete("TrainingRun", NAMESPACE, "moved")


UNIT = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "LearnerUnit",
    "metadata": {"name": "fixed-p-0"},
    "spec": {
        "run": "nobody", "pool": "p", "accelerator": "tpu-v6e-slice", "topology": "2x2", "batch": 8, "stream": 0,
        "streams": 2,
    },
}  # fmt: skip


REFUSED_UNITS = [
    pytest.param({"accelerator": "tpu-v9"}, "spec.accelerator", '"tpu-v6e-slice"', id="unknown-accelerator"),
    pytest.param({"topology": "2 x 2"}, "spec.topology", "should match", id="spaced-topology"),
    pytest.param({"topology": "2x2x1"}, "spec.topology", "one of 1x1, 2x2", id="topology-of-another"),
    pytest.param({"topology": "2x4"}, "spec.topology", "ct6e-standard-8t", id="ambiguous-machine"),
    pytest.param(
        {"machineType": "ct5p-hightpu-4t"}, "spec.machineType", "one of ct6e-standard-1t", id="machine-of-another"
    ),
    pytest.param({"stream": 0.0}, "spec.stream", "expected int, got float64", id="float-stream"),
    pytest.param({"run": "a b"}, "spec.run", "should match", id="run-that-is-no-name"),
    pytest.param({"slices": 2}, "spec.slices", "slices must be 1 for slices of one host", id="slices-of-one-host"),
    pytest.param(
        {"slices": 3, "accelerator": "tpu7x", "topology": "16x24x24"}, "spec.slices", "at most 4096 hosts",
        id="too-many-hosts",
    ),
    pytest.param({"stream": 2}, "spec.stream", "stream must be below streams", id="stream-beyond-the-streams"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "says"), REFUSED_UNITS)
def test_a_unit_that_cannot_work_is_refused_by_name_of_the_field(api, changes, field: str, says: str) -> None:
    with pytest.raises(Refusal) as refusal:
        api.create({**UNIT, "spec": {**UNIT["spec"], **changes}}, NAMESPACE, DRY)
    assert field in str(refusal.value)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        pytest.param(
            volume({"name": "other"}),
            "spec.podTemplate.volumeMounts: Invalid value: volumeMounts[0].name other: must be the name",
            id="mount-of-no-volume",
        ),
        pytest.param(
            volume({"mountPath": "/etc"}),
            "spec.podTemplate.volumeMounts[0].mountPath: Invalid value: mountPath /etc: must be neither",
            id="mount-above-ours",
        ),
        pytest.param(
            volume(name="tls", **CLAIM),
            "spec.podTemplate.volumes[0].name: Invalid value: name tls: must be another",
            id="our-volume",
        ),
    ],
)
def test_a_unit_made_by_hand_is_held_to_the_same_volumes(api, template, says: str) -> None:
    spec = {**UNIT["spec"], "podTemplate": template["spec.podTemplate"]}
    with pytest.raises(Refusal) as refusal:
        api.create({**UNIT, "spec": spec}, NAMESPACE, DRY)
    assert says in str(refusal.value).replace('"', "")


def test_what_a_unit_is_cannot_be_changed_and_what_its_pods_are_made_of_can(api) -> None:
    api.create(UNIT, NAMESPACE)
    try:
        for change in ({"topology": "1x1"}, {"streams": 4}, {"machineType": "ct6e-standard-4t"}):
            with pytest.raises(Refusal) as refusal:
                api.patch("LearnerUnit", NAMESPACE, "fixed-p-0", {"spec": change})
            assert f"spec.{next(iter(change))} cannot be changed" in str(refusal.value)
        taken = api.patch("LearnerUnit", NAMESPACE, "fixed-p-0", {"spec": {"image": "other:1", "batch": 4}})
        assert taken["metadata"]["generation"] == 2
    finally:
        api.delete("LearnerUnit", NAMESPACE, "fixed-p-0")
