"""Shards, evaluator and `kubectl scale` on a real API server."""

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
EVALUATOR = "r-evaluator"
RESULT = {"step": 50, "loss": 3.25, "tokens": 65536, "split": "heldout", "seconds": 2.5, "time": 1.7e9}


def subjects(secret: Any, kind: Any) -> list[str]:
    """The names of this kind in the certificate of a Secret."""
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(found.get_values_for_type(kind))


def test_each_shard_has_a_pod_that_knows_its_number_and_a_certificate_with_all_their_names(
    bench: Bench, control: Callable[..., None]
) -> None:
    control("statefulset-controller")
    bench.operator()
    bench.begin(units=1, syncer={"shards": 2})
    hosts = {f"r-syncer-{shard}.r-syncer.{bench.namespace}.svc" for shard in range(2)}
    hosts.add(f"r-syncer.{bench.namespace}.svc")
    assert hosts <= set(subjects(bench.get("Secret", "r-syncer-tls"), x509.DNSName))
    for index, name in enumerate(("r-syncer-0", "r-syncer-1")):
        pod = bench.until("its pod", lambda name=name: bench.pods().get(name))
        environment = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
        field = environment["ATOLL_SHARD"]["valueFrom"]["fieldRef"]["fieldPath"]
        label = field.removeprefix("metadata.labels['").removesuffix("']")
        assert pod["metadata"]["labels"][label] == str(index)
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (name, "r-syncer")


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
