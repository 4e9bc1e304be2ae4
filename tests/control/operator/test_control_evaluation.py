"""The evaluator of a run on a real API server: its objects, its identity, its result, its removal."""

from __future__ import annotations

import base64

import pytest
from control_bench import Bench
from cryptography import x509

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
RESULT = {"step": 50, "loss": 3.25, "tokens": 65536, "split": "heldout", "seconds": 2.5, "time": 1.7e9}
NAME = "r-evaluator"


def test_the_evaluators_result_is_in_the_status_until_it_is_not_wanted_any_more(bench: Bench) -> None:
    bench.operator()
    run, _ = bench.learn(units=1, evaluation={"tokens": 4096})
    bench.until("its certificate", lambda: bench.get("Secret", f"{NAME}-tls"))
    report = {
        "runUid": run["metadata"]["uid"],
        "phase": "Waiting",
        "newest": RESULT,
        "evaluated": 2,
        "skipped": 1,
    }
    bench.syncers.serve_evaluator(bench.namespace, "r", report)
    message = bench.until_condition("TrainingRun", "r", "Evaluated", "True", "Evaluated")
    assert message == "global step 50: 3.2500 nats per token over 65536 tokens of split heldout"
    assert bench.status("TrainingRun", "r")["evaluation"] == {**RESULT, "evaluated": 2, "skipped": 1}
    body = bench.get("StatefulSet", NAME)
    assert body["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    template = body["spec"]["template"]
    metadata = {"name": f"{NAME}-0", "labels": template["metadata"]["labels"]}
    bench.create({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": metadata})
    bench.until("Pod Security accepts it and it runs", bench.run_pods)
    secret = bench.get("Secret", f"{NAME}-tls")["data"]["tls.crt"]
    extensions = x509.load_pem_x509_certificate(base64.b64decode(secret)).extensions
    found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    identity = f"spiffe://atoll.dev/ns/{bench.namespace}/run/r"
    assert found.get_values_for_type(x509.DNSName) == [f"{NAME}-0.{NAME}.{bench.namespace}.svc"]
    assert found.get_values_for_type(x509.UniformResourceIdentifier) == [f"{identity}/evaluator/{NAME}"]
    assert bench.syncers.callers[f"{bench.namespace}/r/evaluator"] == f"{identity}/operator/operator"

    bench.change(evaluation=None)
    bench.until("removed", lambda: NAME not in bench.names("StatefulSet") | bench.names("Service"))
    bench.until("no condition", lambda: bench.condition("TrainingRun", "r", "Evaluated") == ("", "", ""))
    assert "evaluation" not in bench.status("TrainingRun", "r")
