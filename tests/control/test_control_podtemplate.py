"""What a run adds to its pods, as the API server accepted it, and a change of it."""

from __future__ import annotations

import pytest
from control_bench import Bench

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
TEMPLATE = {
    "labels": {"team": "llm"},
    "annotations": {"example.com/owner": "you"},
    "env": [
        {"name": "XLA_FLAGS", "value": "--one"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ],
    "imagePullSecrets": [{"name": "pull"}],
    "priorityClassName": "system-cluster-critical",
}
FUSE = {
    "driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "fsType": "fuse",
    "volumeAttributes": {"bucketName": "b", "mountOptions": "implicit-dirs"}, "nodePublishSecretRef": {"name": "key"},
}  # fmt: skip
FILES = {
    "name": "s",
    "items": [{"key": "a", "path": "b/c", "mode": 0o400}],
    "optional": True,
    "defaultMode": 0o444,
}
VOLUMES = {
    "corpus": {"persistentVolumeClaim": {"claimName": "corpus", "readOnly": True}},
    "bucket": {"csi": FUSE},
    "settings": {"configMap": FILES},
    "authorities": {"secret": {"secretName": "ca", "optional": False, "defaultMode": 0o440}},
    "scratch": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    "gke-gcsfuse-cache": {"emptyDir": {}},
}
MOUNTS = [
    {"name": "corpus", "mountPath": "/mnt/corpus", "subPath": "tokens/v1"},
    {"name": "bucket", "mountPath": "/mnt/bucket", "readOnly": True},
    {"name": "settings", "mountPath": "/etc/settings"},
    {"name": "authorities", "mountPath": "/etc/ssl/certs"},
    {"name": "scratch", "mountPath": "/dev/shm"},
]


def variable(pod, name):
    return next((item for item in pod["spec"]["containers"][0]["env"] if item["name"] == name), None)


def test_every_pod_has_what_the_run_adds_and_a_change_makes_the_units_anew(bench: Bench) -> None:
    bench.operator()
    data = {"uri": "file:///mnt/corpus/books", "sequenceLength": 128}
    volumes = [{"name": name, **source} for name, source in VOLUMES.items()]
    template = {**TEMPLATE, "volumes": volumes, "volumeMounts": MOUNTS}
    bench.begin(units=1, podTemplate=template, data=data, evaluation={})
    learners = bench.pods()
    sets = [
        bench.until(name, lambda name=name: bench.get("StatefulSet", name))["spec"]["template"]
        for name in ("r-syncer", "r-evaluator")
    ]
    assert len(learners) == 3
    for pod in (*learners.values(), *sets):
        assert TEMPLATE["labels"].items() <= pod["metadata"]["labels"].items()
        assert TEMPLATE["annotations"].items() <= pod["metadata"]["annotations"].items()
        assert [variable(pod, each["name"]) for each in TEMPLATE["env"]] == TEMPLATE["env"]
        assert pod["spec"]["imagePullSecrets"] == TEMPLATE["imagePullSecrets"]
        assert pod["spec"]["priorityClassName"] == TEMPLATE["priorityClassName"]
        named = {item["name"]: item for item in pod["spec"]["volumes"]}
        for name, source in VOLUMES.items():
            assert all(value.items() <= named[name][kind].items() for kind, value in source.items())
        mounted = {item["mountPath"]: item for item in pod["spec"]["containers"][0]["volumeMounts"]}
        assert all(mount.items() <= mounted[mount["mountPath"]].items() for mount in MOUNTS)

    env = [{"name": "XLA_FLAGS", "value": "--two"}]
    bench.change(podTemplate={"env": env})

    def changed() -> bool:
        pods = bench.pods()
        syncer = bench.get("StatefulSet", "r-syncer")["spec"]["template"]
        has = [
            (variable(pod, "XLA_FLAGS")["value"], variable(pod, "TOKEN")) for pod in (*pods.values(), syncer)
        ]
        return not pods.keys() & learners.keys() and has == [("--two", None)] * 4

    bench.until("all have the new value and not the old variable", changed)
    assert [bench.unit(unit)["restartCount"] for unit in ("r-one-0", "r-two-0")] == [0, 0]
