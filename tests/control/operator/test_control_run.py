"""A run from `apply` to its end: objects, conditions, certificates, shards, evaluator, `kubectl scale`, clean-up."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_bench import Bench
from cryptography import x509

from atoll_local.controlplane import ControlPlane

pytestmark = pytest.mark.timeout(300)
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
NAMES = ["r-ca", "r-syncer-tls", *(f"{unit}-tls" for unit in UNITS)]
UNIT, PODS = "r-two-0", ["r-two-0-1-0", "r-two-0-1-1"]
EVALUATOR = "r-evaluator"
RESULT = {"step": 50, "loss": 3.25, "tokens": 65536, "split": "heldout", "seconds": 2.5, "time": 1.7e9}


def test_a_run_becomes_objects_and_conditions_and_keeps_its_status_when_it_is_complete(bench: Bench) -> None:
    bench.operator()
    run, report = bench.learn()
    pods = bench.pods()
    assert set(pods) == {"r-one-0-1-0", "r-one-1-1-0", *PODS}
    pod = pods["r-two-0-1-1"]["spec"]
    environment = {item["name"]: item["value"] for item in pod["containers"][0]["env"]}
    assert environment["TPU_WORKER_ID"] == "1"
    assert environment["STORAGE_EMULATOR_HOST"] == "http://10.0.0.1:4443"
    address = f"r-two-0-1-1.r-two-0.{bench.namespace}.svc:7403"
    assert json.loads(environment["ATOLL_UNIT"])["address"] == address
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"
    config = json.loads(bench.get("ConfigMap", "r-config")["data"]["run.json"])
    assert config["uid"] == run["metadata"]["uid"]
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1
    assert bench.get("Service", UNIT)["spec"]["publishNotReadyAddresses"]
    owners = {bench.get("Secret", name)["metadata"]["ownerReferences"][0]["uid"] for name in NAMES}
    assert owners == {run["metadata"]["uid"]}
    status = bench.status("TrainingRun", "r")
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "True", "Progressing": "True", "Degraded": "False", "Suspended": "False", "Complete": "False",
        "Failed": "False", "Stalled": "False",
    }  # fmt: skip
    figures = status["phase"], status["globalStep"], status["progressPercent"], status["observedGeneration"]
    assert figures == ("Running", 10, 10, 1)
    unit = bench.unit(UNIT)
    assert {item["type"] for item in unit["conditions"]} == {
        "Scheduled", "PodsReady", "Seeded", "Learning", "Healing", "Draining", "LinkAdequate", "Suspect",
    }  # fmt: skip
    assert (unit["phase"], unit["loss"], unit["incarnation"]) == ("Learning", 3.5, 1)
    caller = bench.syncers.callers[f"{bench.namespace}/r/0"]
    assert caller == f"spiffe://atoll.dev/ns/{bench.namespace}/run/r/operator/operator"

    report.update(phase="Finished", globalStep=100, finalCheckpoint="gs://bucket/run/global/100", loss=2.0)
    bench.until_condition("TrainingRun", "r", "Ready", "True", "TargetReached")
    bench.until("no pods", lambda: not bench.pods())
    bench.until("no syncer", lambda: "r-syncer" not in bench.names("StatefulSet"))
    done = bench.status("TrainingRun", "r")
    assert (done["phase"], done["globalStep"], done["progressPercent"]) == ("Complete", 100, 100)
    assert done["finalCheckpoint"] == "gs://bucket/run/global/100" and done["completionTime"]
    bench.until("Finished", lambda: bench.unit("r-one-0")["phase"] == "Finished")
    assert bench.unit("r-one-0")["step"] == 40
    bench.until("an Event", lambda: "TargetReached" in {event["reason"] for event in bench.list("Event")})
    bench.until("no Service", lambda: "r-syncer" not in bench.names("Service"))


def subjects(secret: Any, kind: Any) -> list[str]:
    """The names of this kind in the certificate of a Secret."""
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(found.get_values_for_type(kind))


def test_a_syncer_of_two_shards_has_two_pods_with_their_names_and_shows_which_is_down(
    bench: Bench, control: Callable[..., None]
) -> None:
    control("statefulset-controller")
    bench.operator()
    run = bench.begin(units=1, syncer={"shards": 2})
    hosts = [f"r-syncer-{shard}.r-syncer.{bench.namespace}.svc" for shard in range(2)]
    assert {*hosts, f"r-syncer.{bench.namespace}.svc"} <= {
        *subjects(bench.get("Secret", NAMES[1]), x509.DNSName)
    }
    config = json.loads(bench.get("ConfigMap", "r-config")["data"]["run.json"])
    assert [shard["host"] for shard in config["shards"]] == hosts
    for index, name in enumerate(("r-syncer-0", "r-syncer-1")):
        pod = bench.until("its pod", lambda name=name: bench.pods().get(name))
        environment = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
        field = environment["ATOLL_SHARD"]["valueFrom"]["fieldRef"]["fieldPath"]
        label = field.removeprefix("metadata.labels['").removesuffix("']")
        assert pod["metadata"]["labels"][label] == str(index)
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (name, "r-syncer")
    status = bench.serve(run, shards=2, fragments=48)
    bench.until_condition("TrainingRun", "r", "Ready", "True")
    status.update(globalStep=30, down="shard 1: no session with shard 0")
    degraded = bench.until_condition("TrainingRun", "r", "Degraded", "True", "SyncerShardDown")
    assert "shard 1: no session with shard 0" in degraded
    status.update(down="")
    bench.until_condition("TrainingRun", "r", "Degraded", "False")


def test_the_evaluators_result_is_in_the_status_until_it_is_not_wanted_any_more(bench: Bench) -> None:
    bench.operator()
    run, _ = bench.learn(units=1, evaluation={"tokens": 4096})
    secret = bench.until("its certificate", lambda: bench.get("Secret", f"{EVALUATOR}-tls"))
    report = {"runUid": run["metadata"]["uid"], "phase": "Waiting", "newest": RESULT}
    report |= {"evaluated": 2, "skipped": 1}
    bench.syncers.serve_evaluator(bench.namespace, "r", report)
    bench.until_condition("TrainingRun", "r", "Evaluated", "True", "Evaluated")
    assert bench.status("TrainingRun", "r")["evaluation"] == {**RESULT, "evaluated": 2, "skipped": 1}
    template = bench.get("StatefulSet", EVALUATOR)["spec"]["template"]
    metadata = {"name": f"{EVALUATOR}-0", "labels": template["metadata"]["labels"]}
    bench.create({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": metadata})
    bench.until("Pod Security accepts it and it runs", bench.run_pods)
    identity = f"spiffe://atoll.dev/ns/{bench.namespace}/run/r"
    assert subjects(secret, x509.DNSName) == [f"{EVALUATOR}-0.{EVALUATOR}.{bench.namespace}.svc"]
    assert subjects(secret, x509.UniformResourceIdentifier) == [f"{identity}/evaluator/{EVALUATOR}"]
    assert bench.syncers.callers[f"{bench.namespace}/r/evaluator"] == f"{identity}/operator/operator"

    bench.change(evaluation=None)
    bench.until("removed", lambda: EVALUATOR not in bench.names("StatefulSet") | bench.names("Service"))
    bench.until("no result", lambda: "evaluation" not in bench.status("TrainingRun", "r"))


def test_kubectl_scale_changes_the_number_of_units_and_a_file_that_names_none_leaves_it(
    bench: Bench, plane: ControlPlane, tmp_path: Path, control: Callable[..., None]
) -> None:
    control("garbage-collector-controller")
    bench.operator()
    bench.run()

    def scale(replicas: int, *units: str) -> None:
        said = plane.kubectl("-n", bench.namespace, "scale", "trun/r", f"--replicas={replicas}")
        assert "scaled" in said
        bench.until(f"the units are {units}", lambda: bench.names("LearnerUnit") == set(units))

    scale(2, "r-one-0", "r-one-1")
    bench.until("two are counted", lambda: bench.status("TrainingRun", "r").get("units") == 2)
    selector = bench.status("TrainingRun", "r")["selector"].replace("=", "%3D").replace(",", "%2C")
    path = bench.api.path("Pod", bench.namespace) + f"?labelSelector={selector}"
    bench.until("the selector finds their pods", lambda: len(bench.api.call("GET", path)["items"]) == 2)
    scale(4, "r-one-0", "r-one-1", "r-one-2", "r-two-0")
    body = bench.get("TrainingRun", "r")
    del body["spec"]["units"], body["status"]
    file, metadata = tmp_path / "run.json", {"name": "r", "namespace": bench.namespace}
    file.write_text(json.dumps({**body, "metadata": metadata}))
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert bench.get("TrainingRun", "r")["spec"]["units"] == 4
    scale(0)
    bench.until_condition("TrainingRun", "r", "Ready", "True", "ScaledToZero")
    bench.until("no pods", lambda: not bench.pods())
