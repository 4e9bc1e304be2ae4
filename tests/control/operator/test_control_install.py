"""An operator with the rights of one namespace; and the metrics, logs, Events and stages of a heal."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from apiserver import with_token
from control_bench import Bench

from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import kubectl
from atoll_local.paths import source_root
from atoll_local.programs import find
from atoll_operator.kube.lease import lease_name

RELEASE = "atoll-narrow"
"""Namespace of the operator that may do little, whose kubeconfig is `narrow`."""
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
UNIT = "r-one-0"


@pytest.fixture
def narrow(plane: ControlPlane, bench: Bench, tmp_path: Path) -> Path:
    """A kubeconfig with no rights but those that the chart gives by default, for the bench's namespace."""
    chart = str(source_root() / "charts" / "atoll")
    values = ("--set=crds.enabled=false", f'--set-json=namespaces=["{bench.namespace}"]')
    command = [str(find("helm")), "template", "atoll", chart, f"--namespace={RELEASE}", *values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RELEASE}}
    rights = [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] in RIGHTS]
    for body in (namespace, {"apiVersion": "v1", "kind": "List", "items": rights}):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", body=body)
    user = f"--as=system:serviceaccount:{RELEASE}:atoll-operator"
    for what, where in (("pods", bench.namespace), ("leases.coordination.k8s.io", RELEASE)):
        # The API server's authorizer learns of the bindings by a watch.
        ask = (plane.kubeconfig, "auth", "can-i", "create", what, user, f"--namespace={where}")
        bench.until("its rights count", lambda ask=ask: kubectl(*ask, check=False) == "yes\n")
    return with_token(plane, bench.api, tmp_path / "narrow", namespace=RELEASE)


def test_an_operator_of_one_namespace_needs_a_role_and_touches_no_other(bench: Bench, narrow: Path) -> None:
    elsewhere = f"{bench.namespace}-elsewhere"
    bench.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": elsewhere}}, "")
    run = bench.run()
    own = {key: run[key] for key in ("apiVersion", "kind", "spec")}
    foreign = bench.api.create({**own, "metadata": {"name": "foreign"}}, elsewhere)
    one = bench.operator(KUBECONFIG=str(narrow), ATOLL_LEASE_NAMESPACE=RELEASE)
    bench.settled("r-one-0", "r-one-1", "r-two-0")
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    bench.until("healed", lambda: set(bench.pods(UNIT)) == {"r-one-0-2-0"})
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


def test_an_operator_that_may_not_use_its_lease_says_so_and_ends(bench: Bench, narrow: Path) -> None:
    one = bench.operator(KUBECONFIG=str(narrow), ATOLL_LEASE_NAMESPACE="default")
    assert one.process.wait(40) == 1
    *_, last = (json.loads(line) for line in one.log.read_text().splitlines())
    assert last["level"] == "error" and "traceback" not in last
    assert 'cannot get resource "leases"' in last["error"] and '"default"' in last["error"]


def test_a_heal_is_in_status_events_metrics_and_log(bench: Bench) -> None:
    one = bench.operator()
    _, report = bench.learn(units=1)
    bench.until_condition("LearnerUnit", UNIT, "Learning", "True")
    assert "lastHeal" not in bench.unit(UNIT), "to start is not to heal"
    bench.kubelet.fail(bench.namespace, f"{UNIT}-1-0", 137, reason="OOMKilled")
    bench.until(
        "its next pod runs", lambda: bench.pods(UNIT).keys() == {f"{UNIT}-2-0"} and bench.run_pods(UNIT)
    )
    ran = time.time()
    beginning = {"joined": ran + 3, "stepped": ran + 8, "compiling": 4.0, "compiled": 1, "loaded": 18}
    report["units"][UNIT] |= {"incarnation": 2, "firstMergeTime": ran + 9, "beginning": beginning}
    events = lambda: {event["reason"]: event["message"] for event in bench.list("Event")}  # noqa: E731
    bench.until("Events", lambda: events().keys() >= {"OutOfMemory", "Healed"})
    heal = bench.unit(UNIT)["lastHeal"]
    assert (heal["incarnation"], heal["reason"], heal["stages"]["compile"]) == (2, "OutOfMemory", 4.0)

    counted = 'atoll_heal_stage_seconds_count{stage="compile"}'
    figures = bench.until("metrics", lambda: (now := one.figures()).get(counted) and now)
    assert figures["atoll_heal_seconds_sum"] == pytest.approx(heal["seconds"], abs=0.1)
    once = 'atoll_unit_restarts_total{reason="OutOfMemory"}', 'atoll_runs{phase="Running"}', "atoll_leader"
    assert [figures[name] for name in once] == [1, 1, 1]
    assert figures['atoll_reconcile_seconds_count{kind="LearnerUnit"}'] > 0
    lines = [json.loads(line) for line in one.log.read_text().splitlines()]
    assert all({"ts", "level", "msg", "object"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines} <= {"info", "warning"}
    [failed] = [line for line in lines if line.get("reason") == "OutOfMemory"]
    assert failed["object"] == f"LearnerUnit {bench.namespace}/{UNIT}"
