"""Pods that are refused: the unit's condition has the refuser's words, and the unit goes on when they are accepted. And
pods that are evicted. All other failures are rows of the table in tests/support/operator/memory_failures.py, or scenes
of memory_scenes.py; test_control_placement.py has lost nodes, test_control_leader.py an operator that is killed."""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from answering import LoopThread, answering
from apiserver import Refusal
from control_bench import Bench
from refusals import UNIT, patched

from atoll_local.controlplane import ControlPlane

pytestmark = pytest.mark.timeout(300)
SHOWN_SECONDS = 5
ADMISSION = "admissionregistration.k8s.io/v1"
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "x", "securityContext": CONTAINER}],
    },
}  # fmt: skip


@contextmanager
def account_missing(bench: Bench, *_: Any) -> Iterator[str]:
    bench.delete("ServiceAccount", "default")
    yield "service account"
    bench.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})


@contextmanager
def quota_exceeded(bench: Bench, _: ControlPlane, control: Callable[..., None]) -> Iterator[str]:
    control("resourcequota-controller")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}}
    bench.create({**quota, "spec": {"hard": {"requests.google.com/tpu": "3"}}})
    bench.until("it counts", lambda: bench.status("ResourceQuota", "small").get("hard"))
    yield "exceeded quota: small, requested: requests.google.com/tpu=4"
    bench.patch("ResourceQuota", "small", {"spec": {"hard": {"requests.google.com/tpu": "100"}}})


@contextmanager
def policy_denies(bench: Bench, *_: Any) -> Iterator[str]:
    """With a reason for which the API server answers 413."""
    words, here = "hosts are reserved for another team", own_namespace(bench)
    rule = {"expression": "false", "message": words, "reason": "RequestEntityTooLarge"}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [PODS]}, "validations": [rule]}
    binding = {"policyName": bench.namespace, "validationActions": ["Deny"], "matchResources": here}
    with (
        admission(bench, "ValidatingAdmissionPolicy", spec=policy),
        admission(bench, "ValidatingAdmissionPolicyBinding", spec=binding),
    ):
        refused(bench, words)
        yield words


@contextmanager
def webhook_fails(bench: Bench, plane: ControlPlane, _: Any) -> Iterator[str]:
    """It answers every request with 500."""

    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=500, text="the disk is full")

    assert plane.authority is not None
    pair = plane.authority.issue("webhook", "webhook", hosts=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    thread = LoopThread("webhook")
    try:
        bundle = base64.b64encode(plane.authority.cert.read_bytes()).decode()
        trusted = {"url": thread.enter(answering(fail, context)), "caBundle": bundle}
        hook = {"name": "pods.example.com", "clientConfig": trusted, "rules": [PODS], **own_namespace(bench)}
        hook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail"}
        with admission(bench, "ValidatingWebhookConfiguration", webhooks=[hook]):
            refused(bench, "the disk is full")
            yield "the disk is full"
    finally:
        thread.close()


def own_namespace(bench: Bench) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bench.namespace}}}


@contextmanager
def admission(bench: Bench, kind: str, **fields: Any) -> Iterator[None]:
    """An object of the cluster by which pods are judged, while the context is open."""
    path = f"/apis/{ADMISSION}/{kind.lower()}s".replace("ys", "ies")
    metadata = {"name": bench.namespace}
    bench.api.call("POST", path, {"apiVersion": ADMISSION, "kind": kind, "metadata": metadata, **fields})
    yield
    bench.api.call("DELETE", f"{path}/{bench.namespace}")


def refused(bench: Bench, words: str) -> None:
    """Wait until the API server obeys."""

    def message() -> str:
        try:
            bench.api.create(POD, bench.namespace, "?dryRun=All")
        except Refusal as refusal:
            return str(refusal)
        return ""

    assert words in bench.until("a pod is refused", message)


@pytest.mark.parametrize("refuser", [account_missing, quota_exceeded, policy_denies, webhook_fails])
def test_pods_that_are_refused_are_a_condition_with_the_refusers_words_until_they_are_accepted(
    bench: Bench, plane: ControlPlane, control: Callable[..., None], refuser: Any
) -> None:
    with refuser(bench, plane, control) as words:
        bench.operator()
        bench.run(units=1)
        bench.until("a unit", lambda: bench.get("LearnerUnit", "r-one-0"))
        began = time.monotonic()
        message = bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "False", "ObjectRefused")
        took = time.monotonic() - began
        print(f"shown after {took:.2f} s: {message}")
        assert took <= SHOWN_SECONDS
        assert words in message and words in bench.unit("r-one-0")["message"]
        assert bench.unit("r-one-0").get("restartCount", 0) == 0
    bench.until("it has its pod", lambda: bench.pods("r-one-0"))
    bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "True")


def test_a_volume_that_kubernetes_cannot_read_is_a_condition_until_it_is_corrected(bench: Bench) -> None:
    def template(field: str) -> dict[str, Any]:
        return {"podTemplate": {"volumes": [{"name": "scratch", "emptyDir": {field: "1Gi"}}]}}

    bench.operator()
    bench.run(units=1, **template("sizeLimt"))
    assert "sizeLimt" in bench.until_condition("TrainingRun", "r", "Degraded", "True", "ObjectRefused")
    bench.create(patched(UNIT, {"spec.run": "r", "spec.podTemplate": template("sizeLimt")["podTemplate"]}))
    message = bench.until_condition("LearnerUnit", "u", "Scheduled", "False", "ObjectRefused")
    assert "emptyDir.sizeLimt" in message
    bench.patch("TrainingRun", "r", {"spec": template("sizeLimit")})
    bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "True")


def test_a_pod_that_is_evicted_costs_its_unit_its_hosts_and_no_other_unit_anything(bench: Bench) -> None:
    bench.operator()
    bench.learn(units=1)
    witness, [first, second] = bench.uids("r-one-0"), sorted(bench.pods("r-two-0"))
    bench.kubelet.idle.add(bench.namespace)  # a pod that is gone before the operator sees it says nothing
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": second}}
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, second) + "/eviction", body)
    failure = bench.until("a failure", lambda: bench.unit("r-two-0").get("lastFailure"))
    bench.kubelet.idle.discard(bench.namespace)
    assert (failure["reason"], failure["pod"]) == ("Evicted", second)
    assert "EvictionByEvictionAPI" in failure["message"]
    bench.until("others run", lambda: not {first, second} & bench.pods().keys() and bench.is_whole("r-two-0"))
    assert bench.uids("r-one-0") == witness
