"""The evaluator of a run on a real API server: its objects, what it says, its end."""

from __future__ import annotations

import base64

import pytest
from cryptography import x509

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
RESULT = {"step": 50, "loss": 3.25, "tokens": 65536, "split": "heldout", "seconds": 2.5, "time": 1.7e9}


@pytest.fixture
def evaluated(bench):
    """A run that learns and whose evaluator answers."""
    bench.operator()
    run = bench.run(units=1, evaluation={"tokens": 4096})
    bench.settled(run, ["r-one-0", "r-two-0"])
    status = bench.serve(run)
    bench.until("its certificate", lambda: bench.get("Secret", "r-evaluator-tls"))
    said = {
        "runUid": run["metadata"]["uid"],
        "phase": "Waiting",
        "newest": RESULT,
        "evaluated": 2,
        "skipped": 1,
    }
    bench.syncers.serve_evaluator(bench.namespace, "r", said)
    bench.until("a result", lambda: bench.get("TrainingRun", "r")["status"].get("evaluation"))
    bench.until("all learn", lambda: bench.condition("TrainingRun", "r", "Ready")[0] == "True")
    return bench, status, said


def condition(bench):
    return bench.condition("TrainingRun", "r", "Evaluated")


def there(bench) -> set[str]:
    """Objects of the evaluator."""
    kinds = ("StatefulSet", "Service")
    return {
        kind for kind in kinds for item in bench.api.list(kind, bench.namespace)
        if item["metadata"]["name"] == "r-evaluator"
    }  # fmt: skip


def test_the_result_is_in_the_status_and_the_pod_is_a_restricted_one_with_its_own_identity(evaluated) -> None:
    bench, _, _ = evaluated
    status = bench.get("TrainingRun", "r")["status"]
    assert status["evaluation"] == {**RESULT, "evaluated": 2, "skipped": 1}
    bench.until("Evaluated", lambda: condition(bench)[:2] == ("True", "Evaluated"))
    assert condition(bench)[2] == "global step 50: 3.2500 nats per token over 65536 tokens of split heldout"
    body = bench.get("StatefulSet", "r-evaluator")
    run = bench.get("TrainingRun", "r")
    assert body["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    template = body["spec"]["template"]
    pod = {
        "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
        "metadata": {"name": "r-evaluator-0", "labels": template["metadata"]["labels"]},
    }  # fmt: skip
    bench.api.create(pod, bench.namespace)  # Pod Security takes it
    bench.until("it runs", lambda: bench.get("Pod", "r-evaluator-0")["status"]["phase"] == "Running")
    secret = bench.get("Secret", "r-evaluator-tls")["data"]["tls.crt"]
    names = x509.load_pem_x509_certificate(base64.b64decode(secret)).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == [f"r-evaluator-0.r-evaluator.{bench.namespace}.svc"]
    (uri,) = found.get_values_for_type(x509.UniformResourceIdentifier)
    assert uri == f"spiffe://atoll.dev/ns/{bench.namespace}/run/r/evaluator/r-evaluator"
    caller = bench.syncers.callers[f"{bench.namespace}/r/evaluator"]
    assert caller == f"spiffe://atoll.dev/ns/{bench.namespace}/run/r/operator/operator"


def test_a_change_is_carried_out_while_the_run_trains_and_touches_no_other_pod(evaluated) -> None:
    bench, _, _ = evaluated
    syncer = bench.get("StatefulSet", "r-syncer")["metadata"]["generation"]
    uids = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    change = {"spec": {"evaluation": {"tokens": 8192}}}
    bench.api.patch("TrainingRun", bench.namespace, "r", change)
    bench.until("a new template", lambda: "8192" in str(bench.get("StatefulSet", "r-evaluator")["spec"]))
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": {"evaluation": None}})
    bench.until("removed", lambda: not there(bench))
    bench.until("no condition", lambda: condition(bench) == ("", "", ""))
    assert "evaluation" not in bench.get("TrainingRun", "r")["status"]
    bench.api.patch("TrainingRun", bench.namespace, "r", change)
    bench.until("it is back", lambda: there(bench) == {"StatefulSet", "Service"})
    bench.until("and heard", lambda: bench.get("TrainingRun", "r")["status"].get("evaluation"))
    assert bench.get("StatefulSet", "r-syncer")["metadata"]["generation"] == syncer
    assert {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()} == uids
