"""A syncer of several shards: pods, certificate, contract; what the loss of one does; how their number is changed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import Refusal
from cryptography import x509

from atoll_local.controlplane import ControlPlane
from atoll_operator.api.sections import SyncerSpec
from atoll_operator.plan.pods.syncer import objects
from atoll_operator.plan.pods.template import PodSettings

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build the API server
]
UNITS = ["r-one-0", "r-two-0"]


def serve(bench, run, shards: int) -> list[dict[str, Any]]:
    """Has all shards answer; their statuses, to be changed in place."""
    bench.until("a certificate of all", lambda: set(hosts(bench, shards)) <= certificate_names(bench))
    return [bench.serve(run, shard=shard, shards=shards, fragments=24) for shard in range(shards)]


def hosts(bench, shards: int) -> list[str]:
    return [f"r-syncer-{shard}.r-syncer.{bench.namespace}.svc" for shard in range(shards)]


def certificate_names(bench) -> set[str]:
    data = bench.get("Secret", "r-syncer-tls")["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names.get_values_for_type(x509.DNSName))


def addresses(bench) -> list[str]:
    config = json.loads(bench.get("ConfigMap", "r-config")["data"]["run.json"])
    return [shard["host"] for shard in config["shards"]]


def folder(bench) -> str:
    """Where a shard's journal lies."""
    template = bench.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"]
    return next(
        each["value"] for each in template["containers"][0]["env"] if each["name"] == "ATOLL_JOURNAL_DIR"
    )


def change(bench, **spec: Any) -> None:
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": spec})


@pytest.fixture
def sharded(bench):
    """A run of two shards whose units all learn, under one operator."""
    bench.operator()
    run = bench.run(units=1, syncer={"shards": 2})
    bench.settled(run, UNITS)
    statuses = serve(bench, run, 2)
    bench.until("all learn", lambda: bench.get("TrainingRun", "r")["status"].get("unitsSummary") == "2/2")
    bench.until("both serve", lambda: bench.condition("TrainingRun", "r", "Degraded")[0] == "False")
    return bench, run, statuses


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with the real StatefulSet controller, and no node."""
    with ControlPlane(tmp_path_factory.mktemp("controlled"), controllers=True) as plane:
        yield plane


def pod_names(api) -> set[str]:
    return {pod["metadata"]["name"] for pod in api.list("Pod", "default")}


def test_the_real_controller_makes_a_pod_for_each_shard_that_can_read_its_index(controlled, api) -> None:
    api = type(api)(controlled)
    settings = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
    _, body = objects(settings, "default", [], SyncerSpec(shards=2), replicas=2, layout=0)
    api.create(body, "default")
    names = ["r-syncer-0", "r-syncer-1"]
    deadline = time.monotonic() + 60
    while pod_names(api) != set(names):
        assert time.monotonic() < deadline, f"not within 60 s: {names}, but {pod_names(api)}"
        time.sleep(0.1)
    for index, name in enumerate(names):
        pod = api.get("Pod", "default", name)
        environment = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
        field = environment["ATOLL_SHARD"]["valueFrom"]["fieldRef"]["fieldPath"]
        label = field.removeprefix("metadata.labels['").removesuffix("']")
        assert pod["metadata"]["labels"][label] == str(index)
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (name, "r-syncer")


def test_a_run_of_two_shards_has_two_pods_their_names_and_one_status(sharded) -> None:
    bench, run, statuses = sharded
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 2
    assert addresses(bench) == hosts(bench, 2)
    assert certificate_names(bench) >= {*hosts(bench, 2), f"r-syncer.{bench.namespace}.svc"}
    statuses[0].update(globalStep=40, tokens=900, bytesIn=5)
    statuses[1].update(globalStep=30, tokens=700, bytesIn=6)
    bench.until("the step behind", lambda: bench.get("TrainingRun", "r")["status"]["globalStep"] == 30)
    status = bench.get("TrainingRun", "r")["status"]
    assert (status["tokens"], status["bytesIn"]) == (700, 11)
    statuses[0].update(phase="Finished", globalStep=100, finalCheckpoint="gs://bucket/run/global/100")
    bench.until("Finishing", lambda: bench.get("TrainingRun", "r")["status"]["phase"] == "Finishing")
    statuses[1].update(phase="Finished", globalStep=100)
    bench.until("Complete", lambda: bench.condition("TrainingRun", "r", "Complete")[0] == "True")
    assert bench.get("TrainingRun", "r")["status"]["finalCheckpoint"] == "gs://bucket/run/global/100"
    assert run["spec"]["syncer"]["shards"] == 2


def test_the_number_of_shards_is_changed_in_a_suspended_run_and_in_no_other(sharded) -> None:
    bench, run, _ = sharded
    for spec in ({"syncer": {"shards": 3}}, {"suspend": True, "syncer": {"shards": 3}}):
        with pytest.raises(Refusal) as refusal:
            change(bench, **spec)
        assert "spec.syncer.shards" in str(refusal.value)
        assert "only while spec.suspend is true" in str(refusal.value)
    bench.syncers.reluctant |= {f"{bench.namespace}/r/{shard}" for shard in range(2)}
    change(bench, suspend=True)
    bench.until("it is on its way", lambda: bench.condition("TrainingRun", "r", "Ready")[1] == "Suspending")
    with pytest.raises(Refusal) as refusal:
        change(bench, syncer={"shards": 3})
    assert "with another reason than NotSaved" in str(refusal.value)
    bench.syncers.reluctant.clear()
    bench.until("suspended", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0)
    with pytest.raises(Refusal) as refusal:
        change(bench, suspend=False, syncer={"shards": 3})
    assert "only while spec.suspend is true" in str(refusal.value)
    change(bench, syncer={"shards": 3})
    bench.until("another journal", lambda: folder(bench).endswith("/layout-1"))
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0
    change(bench, suspend=False)
    bench.until("three pods", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 3)
    assert addresses(bench) == hosts(bench, 3)
    statuses = serve(bench, run, 3)
    for status in statuses:
        status.update(globalStep=77)
    bench.until("all three are heard", lambda: bench.get("TrainingRun", "r")["status"]["globalStep"] == 77)
    assert bench.condition("TrainingRun", "r", "Degraded")[1] != "SyncerShardDown"
    assert bench.get("TrainingRun", "r")["status"]["syncerLayout"] == 1
