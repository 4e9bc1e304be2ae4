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


def test_a_run_of_two_shards_has_two_pods_their_names_and_one_status_and_a_suspended_one_takes_a_third(
    bench: Bench, control: Callable[..., None]
) -> None:
    control("statefulset-controller")
    bench.operator()
    run = bench.begin(units=1, syncer={"shards": 2})
    status = serve(bench, run, 2)
    bench.until_condition("TrainingRun", "r", "Ready", "True")
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
    status.update(globalStep=30, down="shard 1: no session with shard 0")
    degraded = bench.until_condition("TrainingRun", "r", "Degraded", "True", "SyncerShardDown")
    assert "shard 1: no session with shard 0" in degraded
    status.update(down="")
    bench.until_condition("TrainingRun", "r", "Degraded", "False")

    # The table of refusals says when their number cannot be changed, and the crash story that their journal is new.
    bench.change(suspend=True)
    bench.until("suspended", lambda: replicas(bench) == 0)
    with pytest.raises(Refusal, match="can be changed only while"):
        bench.change(suspend=False, syncer={"shards": 3})
    bench.change(syncer={"shards": 3})
    bench.change(suspend=False)
    bench.until("three pods", lambda: replicas(bench) == 3)
    assert addresses(bench) == hosts(bench, 3)
    serve(bench, run, 3).update(globalStep=77)
    bench.until("its status", lambda: bench.status("TrainingRun", "r")["globalStep"] == 77)
    assert bench.status("TrainingRun", "r")["syncerLayout"] == 1
