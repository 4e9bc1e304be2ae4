"""`kubectl apply -k manifests` and every sample on a real API server; what the operator may do there; who may read its
metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from apiserver import Api, with_token
from commands import ended
from control_bench import Bench

from atoll_local.controlplane import ControlPlane
from atoll_local.programs import find

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
OPERATOR = "system:serviceaccount:atoll-system:atoll-operator"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_the_sample(plane: ControlPlane, sample: Path) -> None:
    command = (find("kubectl"), f"--kubeconfig={plane.kubeconfig}", "apply", "--server-side")
    done = ended(*command, "--dry-run=server", "--validate=strict", "-f", sample)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    assert len(SAMPLES) >= 3


def test_the_operators_pod_meets_restricted(plane: ControlPlane, bench: Bench) -> None:
    found = plane.kubectl("-n", "atoll-system", "get", "deployment", "atoll-operator", "-o", "json")
    spec = json.loads(found)["spec"]["template"]["spec"]
    del spec["serviceAccountName"], spec["serviceAccount"]
    bench.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec})


EXCESS = (
    "update trainingruns.atoll.dev", "patch trainingruns.atoll.dev", "create trainingruns.atoll.dev",
    "create pods/exec", "deletecollection secrets", "update configmaps", "create deployments.apps",
    "delete persistentvolumeclaims", "patch nodes", "create clusterroles.rbac.authorization.k8s.io",
    "create serviceaccounts/token", "create pods/eviction",
    "patch validatingadmissionpolicies.admissionregistration.k8s.io",
)  # fmt: skip


def test_the_operator_may_do_no_more_than_it_needs(api: Api) -> None:
    """It has what it needs: the tests of the operator run it with its real rights."""
    for right in EXCESS:
        verb, resource = right.split()
        resource, _, subresource = resource.partition("/")
        resource, _, group = resource.partition(".")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        spec = {"user": OPERATOR, "resourceAttributes": {**asked, "namespace": "anywhere"}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        assert answer["status"]["allowed"] is False, right


def test_metrics_are_for_accounts_that_may_get_them(
    plane: ControlPlane, bench: Bench, tmp_path: Path
) -> None:
    space = bench.namespace
    kubeconfig = with_token(plane, bench.api, tmp_path / "reader", "default", space)
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    operator = bench.operator()
    bench.until("it is ready", lambda: operator.page("/readyz")[0] == 200)
    assert operator.page("/metrics", "")[0] == 401
    assert operator.page("/metrics", token[:-8] + "AAAAAAAA")[0] == 401
    assert operator.page("/metrics", token) == (403, "")
    assert operator.page("/metrics?", "")[0] == 404, "the port of the probes has none"
    granted = ("--clusterrole=atoll-metrics-reader-atoll-system", f"--serviceaccount={space}:default")
    plane.kubectl("create", "clusterrolebinding", space, *granted)
    text = bench.until(
        "its right counts", lambda: (got := operator.page("/metrics", token))[0] == 200 and got[1]
    )
    assert "\natoll_leader 1.0\n" in text
    plane.kubectl("delete", "clusterrolebinding", space)
