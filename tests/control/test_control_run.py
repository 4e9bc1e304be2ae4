"""A run from `apply` to its end: objects, conditions, figures, suspension, clean-up."""

from __future__ import annotations

import json
import signal

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]


@pytest.fixture
def learning(bench):
    """A run whose units all learn, under one operator."""
    operator = bench.operator()
    run = bench.run()
    bench.settled(run, UNITS)
    status = bench.serve(run)
    bench.until("all learn", lambda: bench.get("TrainingRun", "r")["status"].get("unitsSummary") == "3/3")
    return bench, run, status, operator


def test_a_run_becomes_objects_and_conditions(learning) -> None:
    bench, run, _, _ = learning
    pods = bench.pods()
    assert set(pods) == {"r-one-0-1-0", "r-one-1-1-0", "r-two-0-1-0", "r-two-0-1-1"}
    pod = pods["r-two-0-1-1"]
    environment = {item["name"]: item["value"] for item in pod["spec"]["containers"][0]["env"]}
    host = f"r-two-0.{bench.namespace}.svc"
    assert environment["TPU_WORKER_ID"] == "1"
    assert environment["TPU_WORKER_HOSTNAMES"] == f"r-two-0-1-0.{host},r-two-0-1-1.{host}"
    assert environment["STORAGE_EMULATOR_HOST"] == "http://10.0.0.1:4443"
    assert json.loads(environment["ATOLL_UNIT"])["coordinator"] == f"r-two-0-1-0.{host}:8476"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"
    config = json.loads(bench.get("ConfigMap", "r-config")["data"]["run.json"])
    assert config["uid"] == run["metadata"]["uid"]
    assert [shard["host"] for shard in config["shards"]] == [f"r-syncer-0.r-syncer.{bench.namespace}.svc"]
    assert json.loads(environment["ATOLL_UNIT"])["address"] == f"r-two-0-1-1.{host}:7403"
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1
    assert bench.get("Service", "r-two-0")["spec"]["publishNotReadyAddresses"]
    for name in ("r-ca", "r-syncer-tls", *(f"{unit}-tls" for unit in UNITS)):
        assert bench.get("Secret", name)["metadata"]["ownerReferences"][0]["uid"] == run["metadata"]["uid"]
    status = bench.get("TrainingRun", "r")["status"]
    conditions = {item["type"]: item["status"] for item in status["conditions"]}
    assert conditions == {
        "Ready": "True", "Progressing": "True", "Degraded": "False", "Suspended": "False", "Complete": "False",
        "Failed": "False", "Stalled": "False",
    }  # fmt: skip
    assert (status["phase"], status["globalStep"], status["progressPercent"]) == ("Running", 10, 10)
    assert status["observedGeneration"] == 1
    unit = bench.get("LearnerUnit", "r-two-0")["status"]
    assert {item["type"] for item in unit["conditions"]} == {
        "Scheduled", "PodsReady", "Seeded", "Learning", "Healing", "Draining",
    }  # fmt: skip
    assert (unit["phase"], unit["loss"], unit["incarnation"]) == ("Learning", 3.5, 1)
    caller = bench.syncers.callers[f"{bench.namespace}/r/0"]
    assert caller == f"spiffe://atoll.dev/ns/{bench.namespace}/run/r/operator/operator"


def test_a_finished_run_keeps_its_status_and_not_its_pods(learning) -> None:
    bench, _, status, _ = learning
    status.update(phase="Finished", globalStep=100, finalCheckpoint="gs://bucket/run/global/100", loss=2.0)
    bench.until("Complete", lambda: bench.condition("TrainingRun", "r", "Complete")[0] == "True")
    bench.until("no pods", lambda: not bench.pods())
    bench.until("no syncer", lambda: "r-syncer" not in names(bench, "StatefulSet"))
    done = bench.get("TrainingRun", "r")["status"]
    assert (done["phase"], done["globalStep"], done["progressPercent"]) == ("Complete", 100, 100)
    assert done["finalCheckpoint"] == "gs://bucket/run/global/100"
    assert done["completionTime"]
    assert bench.condition("TrainingRun", "r", "Ready")[:2] == ("True", "TargetReached")
    bench.until("Finished", lambda: bench.get("LearnerUnit", "r-one-0")["status"]["phase"] == "Finished")
    assert bench.get("LearnerUnit", "r-one-0")["status"]["step"] == 40
    bench.until(
        "an Event",
        lambda: "TargetReached" in {event["reason"] for event in bench.api.list("Event", bench.namespace)},
    )


def test_a_syncer_that_does_not_answer_is_a_condition_and_no_heal(learning) -> None:
    bench, _, _, _ = learning
    uids = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    kept = bench.syncers.statuses.pop(f"{bench.namespace}/r/0")
    bench.until(
        "not Ready",
        lambda: bench.condition("TrainingRun", "r", "Ready")[:2] == ("False", "SyncerUnavailable"),
    )
    assert degraded(bench, "SyncerUnavailable")
    assert bench.condition("LearnerUnit", "r-one-0", "Learning")[0] == "True"
    bench.syncers.statuses[f"{bench.namespace}/r/0"] = kept
    bench.until("Ready", lambda: bench.condition("TrainingRun", "r", "Ready")[0] == "True")
    assert {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()} == uids


def test_a_syncer_with_another_runs_certificate_is_not_believed(bench) -> None:
    bench.operator()
    run, other = bench.run("r", units=1), bench.run("other", units=1)
    bench.until(
        "certificates",
        lambda: bench.get("Secret", "other-syncer-tls") and bench.get("Secret", "r-syncer-tls"),
    )
    bench.settled(run, ["r-one-0"])
    bench.syncers.serve(bench.namespace, "r", bench.report(run), certificate_of=(bench.namespace, "other"))
    bench.until(
        "the certificate is refused",
        lambda: bench.condition("TrainingRun", "r", "Ready")[:2] == ("False", "SyncerCertificateInvalid"),
    )
    assert bench.get("TrainingRun", "r")["status"]["globalStep"] == 0
    assert other["metadata"]["uid"]


def test_a_syncer_that_cannot_go_on_fails_the_run_with_its_own_words(learning) -> None:
    bench, _, _, _ = learning
    labels = {
        "app.kubernetes.io/managed-by": "atoll", "atoll.dev/run": "r", "atoll.dev/component": "syncer",
    }  # fmt: skip
    template = bench.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"]
    template["containers"][0]["volumeMounts"] = [
        mount for mount in template["containers"][0]["volumeMounts"] if mount["name"] != "journal"
    ]
    bench.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "r-syncer-0", "labels": labels},
            "spec": template,
        },
        bench.namespace,
    )
    bench.until("it runs", lambda: bench.get("Pod", "r-syncer-0")["status"]["phase"] == "Running")
    ended = {
        "exitCode": 64,
        "reason": "Error",
        "message": "LayoutMismatch: the checkpoint is of another model",
    }
    one = {
        "name": "main", "image": "i", "imageID": "", "restartCount": 1, "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
    }  # fmt: skip
    bench.kubelet.status(bench.namespace, "r-syncer-0", {"containerStatuses": [one]})
    bench.until(
        "Failed", lambda: bench.condition("TrainingRun", "r", "Failed")[:2] == ("True", "LayoutMismatch")
    )
    assert "the checkpoint is of another model" in bench.get("TrainingRun", "r")["status"]["message"]
    bench.until("the journal is kept", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0)
    bench.until("no learners", lambda: set(bench.pods()) <= {"r-syncer-0"})


def test_sigterm_ends_the_operator_in_order(learning) -> None:
    _, _, _, operator = learning
    assert operator.kill(signal.SIGTERM) == 0
    assert "Traceback" not in operator.log.read_text()


def degraded(bench, reason):
    condition = bench.condition("TrainingRun", "r", "Degraded")
    return condition if condition[:2] == ("True", reason) else None


def names(bench, kind) -> set[str]:
    return {item["metadata"]["name"] for item in bench.api.list(kind, bench.namespace)}
