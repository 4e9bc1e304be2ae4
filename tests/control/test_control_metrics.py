"""The operator's metrics on a real API server: for whom its TokenReview and SubjectAccessReview speak."""

from __future__ import annotations

from pathlib import Path

import yaml
from apiserver import with_token
from control_bench import Bench

from atoll_local.controlplane import ControlPlane


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
