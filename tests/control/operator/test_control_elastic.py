"""`kubectl scale` of a run that trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from control_bench import Bench

from atoll_local.controlplane import ControlPlane

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]


def units_are(bench: Bench, *names: str) -> None:
    bench.until(f"the units are {names}", lambda: bench.names("LearnerUnit") == set(names))


def test_kubectl_scale_gives_back_every_chip_and_takes_them_again(
    bench: Bench, plane: ControlPlane, tmp_path: Path, control: Callable[..., None]
) -> None:
    control("garbage-collector-controller")
    bench.operator()
    bench.learn()

    def scale(replicas: int) -> None:
        said = plane.kubectl("-n", bench.namespace, "scale", "trun/r", f"--replicas={replicas}")
        assert "scaled" in said

    scale(0)
    bench.until("no units and no pods", lambda: not bench.names("LearnerUnit") and not bench.pods())
    bench.until_condition("TrainingRun", "r", "Ready", "True", "ScaledToZero")
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1
    scale(2)
    units_are(bench, "r-one-0", "r-one-1")
    bench.until("two are counted", lambda: bench.status("TrainingRun", "r")["units"] == 2)
    selector = bench.status("TrainingRun", "r")["selector"].replace("=", "%3D").replace(",", "%2C")
    path = bench.api.path("Pod", bench.namespace) + f"?labelSelector={selector}"
    bench.until("the selector finds their pods", lambda: len(bench.api.call("GET", path)["items"]) == 2)
    scale(4)
    units_are(bench, "r-one-0", "r-one-1", "r-one-2", "r-two-0")

    # A file that names no total does not undo a scale.
    body = bench.get("TrainingRun", "r")
    spec = {key: value for key, value in body["spec"].items() if key != "units"}
    metadata = {"name": "r", "namespace": bench.namespace}
    file = tmp_path / "run.json"
    file.write_text(
        json.dumps(
            {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata, "spec": spec}
        )
    )
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert bench.get("TrainingRun", "r")["spec"]["units"] == 4
