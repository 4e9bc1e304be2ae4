"""What a run adds to its pods, as the API server took it, and a change of it."""

from __future__ import annotations

import pytest

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
VOLUMES = [
    {"name": "corpus", "persistentVolumeClaim": {"claimName": "corpus", "readOnly": True}},
    {
        "name": "bucket",
        "csi": {
            "driver": "gcsfuse.csi.storage.gke.io",
            "readOnly": True,
            "fsType": "fuse",
            "volumeAttributes": {"bucketName": "my-bucket", "mountOptions": "implicit-dirs"},
            "nodePublishSecretRef": {"name": "key"},
        },
    },
    {
        "name": "settings",
        "configMap": {
            "name": "settings", "items": [{"key": "a", "path": "b/c", "mode": 0o400}], "optional": True,
            "defaultMode": 0o444,
        },
    },
    {"name": "authorities", "secret": {"secretName": "ca", "optional": False, "defaultMode": 0o440}},
    {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    {"name": "gke-gcsfuse-cache", "emptyDir": {}},
]  # fmt: skip
MOUNTS = [
    {"name": "corpus", "mountPath": "/mnt/corpus", "subPath": "tokens/v1"},
    {"name": "bucket", "mountPath": "/mnt/bucket", "readOnly": True},
    {"name": "settings", "mountPath": "/etc/settings"},
    {"name": "authorities", "mountPath": "/etc/ssl/certs"},
    {"name": "scratch", "mountPath": "/dev/shm"},
]


def variable(pod, name):
    return next((item for item in pod["spec"]["containers"][0]["env"] if item["name"] == name), None)


def test_every_pod_has_what_the_run_adds_and_a_change_makes_the_units_anew(bench) -> None:
    bench.operator()
    run = bench.run(units=1, podTemplate=TEMPLATE)
    bench.settled(run, ["r-one-0", "r-two-0"])
    pods = bench.pods()
    assert len(pods) == 3
    syncer = bench.until("the syncer", lambda: bench.get("StatefulSet", "r-syncer"))["spec"]["template"]
    for pod in (*pods.values(), syncer):
        assert pod["metadata"]["labels"]["team"] == "llm"
        assert pod["metadata"]["annotations"]["example.com/owner"] == "you"
        assert variable(pod, "XLA_FLAGS")["value"] == "--one"
        assert variable(pod, "TOKEN") == TEMPLATE["env"][1]
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
        assert pod["spec"]["priorityClassName"] == "system-cluster-critical"

    env = [{"name": "XLA_FLAGS", "value": "--two"}]
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": {"podTemplate": {"env": env}}})
    bench.until(
        "new pods have the new value and not the old variable",
        lambda: (
            len(anew := bench.pods()) == 3
            and not anew.keys() & pods.keys()
            and all(variable(pod, "XLA_FLAGS")["value"] == "--two" for pod in anew.values())
            and all(variable(pod, "TOKEN") is None for pod in anew.values())
        ),
    )
    bench.until(
        "the syncer's pods too",
        lambda: (
            variable(bench.get("StatefulSet", "r-syncer")["spec"]["template"], "XLA_FLAGS")["value"]
            == "--two"
        ),
    )
    assert [bench.get("LearnerUnit", unit)["status"]["restartCount"] for unit in ("r-one-0", "r-two-0")] == [
        0,
        0,
    ]


def test_every_pod_has_the_volumes_and_mounts_of_the_run_as_it_says_them(bench) -> None:
    bench.operator()
    data = {"uri": "file:///mnt/corpus/books", "sequenceLength": 128}
    template = {"volumes": VOLUMES, "volumeMounts": MOUNTS}
    bench.settled(bench.run(units=1, podTemplate=template, data=data, evaluation={}), ["r-one-0", "r-two-0"])
    sets = [
        bench.until(name, lambda name=name: bench.get("StatefulSet", name))["spec"]["template"]
        for name in ("r-syncer", "r-evaluator")
    ]
    pods = [*bench.pods().values(), *sets]
    assert len(pods) == 5
    for pod in pods:
        named = {item["name"]: item for item in pod["spec"]["volumes"]}
        for volume in VOLUMES:
            source = next(key for key in volume if key != "name")
            assert volume[source].items() <= named[volume["name"]][source].items()
        mounted = {item["mountPath"]: item for item in pod["spec"]["containers"][0]["volumeMounts"]}
        for mount in MOUNTS:
            assert mount.items() <= mounted[mount["mountPath"]].items()
