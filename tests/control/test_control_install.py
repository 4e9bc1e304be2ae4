"""One operator for one namespace, with no right outside of it; and what a real operator's metrics and logs hold."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.kube.lease import lease_name

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build helm
]
RELEASE = "atoll-narrow"
"""Namespace of the operator that may do little, whose kubeconfig is `narrow`."""


def test_an_operator_of_one_namespace_works_with_a_role_and_touches_no_other(
    bench: Any, narrow: Path
) -> None:
    elsewhere = f"{bench.namespace}-elsewhere"
    bench.api.call(
        "POST",
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": elsewhere}},
    )
    foreign = bench.run()
    foreign = bench.api.create(
        {key: foreign[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "foreign"}},
        elsewhere,
    )
    one = bench.operator(KUBECONFIG=str(narrow), ATOLL_LEASE_NAMESPACE=RELEASE)
    bench.settled(foreign, ["r-one-0", "r-one-1", "r-two-0"])
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("healed", lambda: set(bench.pods("r-one-0")) == {"r-one-0-2-0"})
    assert one.page("/readyz") == (200, "ok, leads")
    name = lease_name("atoll-operator", [bench.namespace])
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases/{name}"
    assert bench.api.call("GET", lease)["spec"]["holderIdentity"]
    # Its one question that may be answered with no is whether it may watch nodes.
    assert one.figures().get('atoll_api_errors_total{code="403"}', 0) <= 1
    assert "forbidden" not in one.log.read_text().lower()
    untouched = bench.api.get("TrainingRun", elsewhere, "foreign")
    assert untouched["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    assert not bench.api.list("LearnerUnit", elsewhere) and not bench.api.list("Secret", elsewhere)
    bench.api.delete("TrainingRun", elsewhere, "foreign")


def test_an_operator_that_may_not_use_its_lease_says_so_and_ends(bench: Any, narrow: Path) -> None:
    one = bench.operator(KUBECONFIG=str(narrow), ATOLL_LEASE_NAMESPACE="default")
    assert one.process.wait(40) == 1
    *_, last = (json.loads(line) for line in one.log.read_text().splitlines())
    assert last["level"] == "error" and "traceback" not in last
    assert 'cannot get resource "leases"' in last["error"] and '"default"' in last["error"]


def test_what_happened_is_in_the_metrics_and_every_line_of_the_log_can_be_read(bench: Any) -> None:
    one = bench.operator()
    run = bench.run(units=1)
    bench.settled(run, ["r-one-0", "r-two-0"])
    status = bench.serve(run)
    bench.until("learning", lambda: bench.condition("LearnerUnit", "r-one-0", "Learning")[0] == "True")
    before = one.figures()
    assert before["atoll_heal_seconds_count"] == 0
    assert (before["atoll_leader"], before["atoll_queue_depth"] >= 0) == (1, True)
    assert before["atoll_queue_oldest_seconds"] < 5
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0", 137, reason="OOMKilled")
    bench.until("replaced", lambda: set(bench.pods("r-one-0")) == {"r-one-0-2-0"})
    status["units"]["r-one-0"] |= {"incarnation": 2, "firstMergeTime": time.time() + 2}
    bench.until("healed", lambda: one.figures()["atoll_heal_seconds_count"] == 1)
    after = one.figures()
    seconds = bench.get("LearnerUnit", "r-one-0")["status"]["lastHealSeconds"]
    assert after["atoll_heal_seconds_sum"] == pytest.approx(seconds, abs=0.1)
    assert after['atoll_unit_restarts_total{reason="OutOfMemory"}'] == 1
    assert after['atoll_runs{phase="Running"}'] == 1
    for kind in ("TrainingRun", "LearnerUnit"):
        count = f'atoll_reconcile_seconds_count{{kind="{kind}"}}'
        assert after[count] >= before[count] > 0
        assert after[f'atoll_reconcile_seconds_sum{{kind="{kind}"}}'] > 0
    # The first look at the Secrets of a new run's authorities and syncer finds none.
    assert after['atoll_api_errors_total{code="404"}'] >= 2

    lines = [json.loads(line) for line in one.log.read_text().splitlines()]
    assert all({"ts", "level", "msg", "object"} <= line.keys() for line in lines)
    moments = [datetime.datetime.fromisoformat(line["ts"]) for line in lines]
    assert moments == sorted(moments) and all(moment.tzinfo for moment in moments)
    assert {line["level"] for line in lines} <= {"info", "warning"}
    (failed,) = [line for line in lines if line.get("reason") == "OutOfMemory"]
    assert failed["object"] == f"LearnerUnit {bench.namespace}/r-one-0"
