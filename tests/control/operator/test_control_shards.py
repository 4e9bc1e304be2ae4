"""A syncer of several shards: pods, certificate, contract, one status; how their number is changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from apiserver import Refusal
from control_bench import Bench
from cryptography import x509

# The first call may have to build the API server
pytestmark = [pytest.mark.control, pytest.mark.timeout(900)]
SHARDS = ["r-syncer-0", "r-syncer-1"]


def serve(bench: Bench, run: Any, shards: int) -> dict[str, Any]:
    """Has shard 0 answer for all; its status, to be changed in place."""
    bench.until("a certificate of all", lambda: set(hosts(bench, shards)) <= certificate_names(bench))
    return bench.serve(run, shards=shards, fragments=24 * shards)


def hosts(bench: Bench, shards: int) -> list[str]:
    return [f"r-syncer-{shard}.r-syncer.{bench.namespace}.svc" for shard in range(shards)]


def certificate_names(bench: Bench) -> set[str]:
    data = bench.get("Secret", "r-syncer-tls")["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names.get_values_for_type(x509.DNSName))


def addresses(bench: Bench) -> list[str]:
    config = json.loads(bench.get("ConfigMap", "r-config")["data"]["run.json"])
    return [shard["host"] for shard in config["shards"]]


def replicas(bench: Bench) -> int:
    return int(bench.get("StatefulSet", "r-syncer")["spec"]["replicas"])


def begin(bench: Bench) -> tuple[Any, dict[str, Any]]:
    """A run of two shards whose units all learn, under one operator."""
    bench.operator()
    run = bench.begin(units=1, syncer={"shards": 2})
    status = serve(bench, run, 2)
    bench.until("all learn", lambda: bench.status("TrainingRun", "r").get("unitsSummary") == "2/2")
    bench.until_condition("TrainingRun", "r", "Degraded", "False")
    return run, status


def test_a_run_of_two_shards_has_two_pods_their_names_and_one_status(
    bench: Bench, control: Callable[..., None]
) -> None:
    control("statefulset-controller")
    _, status = begin(bench)
    assert addresses(bench) == hosts(bench, 2)
    assert certificate_names(bench) >= {*hosts(bench, 2), f"r-syncer.{bench.namespace}.svc"}
    bench.until("a pod for each shard", lambda: set(SHARDS) <= bench.pods().keys())
    for index, name in enumerate(SHARDS):
        pod = bench.get("Pod", name)
        environment = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
        field = environment["ATOLL_SHARD"]["valueFrom"]["fieldRef"]["fieldPath"]
        label = field.removeprefix("metadata.labels['").removesuffix("']")
        assert pod["metadata"]["labels"][label] == str(index)
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (name, "r-syncer")
    status.update(globalStep=30, tokens=7000, bytesIn=11, down="shard 1: no session with shard 0")
    figures = lambda: [bench.status("TrainingRun", "r")[name] for name in ("globalStep", "tokens", "bytesIn")]  # noqa: E731
    bench.until("the figures", lambda: figures() == [30, 7000, 11])
    degraded = bench.until_condition("TrainingRun", "r", "Degraded", "True", "SyncerShardDown")
    assert "shard 1: no session with shard 0" in degraded
    status.update(down="")
    bench.until_condition("TrainingRun", "r", "Degraded", "False")
    status.update(phase="Finished", globalStep=100, finalCheckpoint="gs://bucket/run/global/100")
    bench.until_condition("TrainingRun", "r", "Complete", "True")
    assert bench.status("TrainingRun", "r")["finalCheckpoint"] == "gs://bucket/run/global/100"


def refused(bench: Bench, words: str, **spec: Any) -> None:
    with pytest.raises(Refusal, match=words) as refusal:
        bench.change(**spec)
    assert "spec.syncer.shards" in str(refusal.value)


def test_the_number_of_shards_is_changed_in_a_suspended_run_and_in_no_other(bench: Bench) -> None:
    run, _ = begin(bench)
    suspended = "only while spec.suspend is true"
    refused(bench, suspended, syncer={"shards": 3})
    refused(bench, suspended, suspend=True, syncer={"shards": 3})
    bench.syncers.reluctant.add(f"{bench.namespace}/r/0")
    bench.change(suspend=True)
    bench.until_condition("TrainingRun", "r", "Ready", "False", "Suspending")
    refused(bench, "with another reason than NotSaved", syncer={"shards": 3})
    bench.syncers.reluctant.clear()
    bench.until("suspended", lambda: replicas(bench) == 0)
    refused(bench, suspended, suspend=False, syncer={"shards": 3})
    bench.change(syncer={"shards": 3})
    template = lambda: str(bench.get("StatefulSet", "r-syncer")["spec"]["template"])  # noqa: E731
    bench.until("another journal", lambda: "/layout-1'" in template())
    assert replicas(bench) == 0
    bench.change(suspend=False)
    bench.until("three pods", lambda: replicas(bench) == 3)
    assert addresses(bench) == hosts(bench, 3)
    serve(bench, run, 3).update(globalStep=77)
    bench.until("its status", lambda: bench.status("TrainingRun", "r")["globalStep"] == 77)
    assert bench.condition("TrainingRun", "r", "Degraded")[1] != "SyncerShardDown"
    assert bench.status("TrainingRun", "r")["syncerLayout"] == 1
