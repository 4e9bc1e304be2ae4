"""Failures in which the API server or a controller of Kubernetes has a part.

These are eviction, admission and quota; test_control_placement.py has the controllers that take pods from lost nodes.
All other failures are rows of the table in tests/support/operator/memory_failures.py, or scenes of memory_scenes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from control_bench import Bench
from refusals import UNIT as BY_HAND
from refusals import patched

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNIT, VICTIM = "r-two-0", "r-two-0-1-1"
Control = Callable[..., None]


def test_eviction_by_the_api_moves_the_unit(bench: Bench) -> None:
    bench.operator()
    bench.begin()
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": VICTIM}}
    bench.kubelet.idle.add(bench.namespace)  # a pod that is gone before the operator sees it says nothing
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, VICTIM) + "/eviction", body)
    bench.until("a failure", lambda: "lastFailure" in bench.unit(UNIT))
    bench.kubelet.idle.discard(bench.namespace)
    bench.until("new pods", lambda: set(bench.pods(UNIT)) == {"r-two-0-2-0", "r-two-0-2-1"})
    failure = bench.unit(UNIT)["lastFailure"]
    assert (failure["reason"], failure["pod"]) == ("Evicted", VICTIM)
    assert "EvictionByEvictionAPI" in failure["message"]


@pytest.mark.parametrize("refuser", ["service account", "quota"])
def test_pods_that_admission_refuses_are_a_condition_until_it_accepts_them(
    bench: Bench, control: Control, refuser: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    if refuser == "quota":
        control("resourcequota-controller")
        hard = {"hard": {"requests.google.com/tpu": "3"}}
        bench.create(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": hard}
        )
        bench.until("it counts", lambda: bench.status("ResourceQuota", "small").get("hard"))
        words = "exceeded quota: small, requested: requests.google.com/tpu=4"
    else:
        bench.delete("ServiceAccount", "default")
        words = "service account"
    bench.operator()
    bench.run(units=1)
    message = bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "False", "ObjectRefused")
    assert words in message and words in bench.unit("r-one-0")["message"]
    assert bench.unit("r-one-0").get("restartCount", 0) == 0
    if refuser == "quota":
        bench.patch("ResourceQuota", "small", {"spec": {"hard": {"requests.google.com/tpu": "100"}}})
    else:
        bench.create(account)
    bench.until("it has its pod", lambda: bench.pods("r-one-0"))
    bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "True")


def test_a_volume_that_kubernetes_does_not_understand_is_a_condition_of_run_and_unit_until_it_is_corrected(
    bench: Bench,
) -> None:
    def template(field: str) -> dict[str, Any]:
        return {"podTemplate": {"volumes": [{"name": "scratch", "emptyDir": {field: "1Gi"}}]}}

    bench.operator()
    bench.run(units=1, **template("sizeLimt"))
    assert "sizeLimt" in bench.until_condition("TrainingRun", "r", "Degraded", "True", "ObjectRefused")
    bench.create(patched(BY_HAND, {"spec.run": "r", "spec.podTemplate": template("sizeLimt")["podTemplate"]}))
    message = bench.until_condition("LearnerUnit", "u", "Scheduled", "False", "ObjectRefused")
    assert "emptyDir.sizeLimt" in message
    bench.patch("TrainingRun", "r", {"spec": template("sizeLimit")})
    bench.until_condition("LearnerUnit", "r-one-0", "Scheduled", "True")
