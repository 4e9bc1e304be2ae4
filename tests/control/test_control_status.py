"""What the demo says, of objects on a real API server, when a wait of it ends badly."""

from __future__ import annotations

import io
from typing import Any

import pytest
from control_bench import Bench
from refusals import UNIT

from atoll_cli.demo.console import Console
from atoll_cli.demo.watch import Observer, Watch, diagnose
from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl
from atoll_local.controlplane import ControlPlane
from atoll_local.programs import find


def condition(kind: str, status: str, reason: str = "Test") -> dict[str, Any]:
    said = {"reason": reason, "message": "as told", "lastTransitionTime": "2026-11-21T00:00:00Z"}
    return {"conditions": [{"type": kind, "status": status, **said}]}


def test_the_demo_ends_a_wait_with_a_diagnosis(bench: Bench, plane: ControlPlane) -> None:
    def told(kind: str, name: str, **status: Any) -> None:
        bench.api.patch(kind, bench.namespace, name, {"status": status}, "/status")

    bench.run()
    bench.create({**UNIT, "spec": {**UNIT["spec"], "run": "r"}})
    told("TrainingRun", "r", **condition("Complete", "False"))
    told("LearnerUnit", "u", **condition("Learning", "True"))
    tool = Kubectl(program=find("kubectl"), kubeconfig=plane.kubeconfig, namespace=bench.namespace)
    watch = Watch(Observer(tool, "r", print), lambda: diagnose(tool, "r"), Console(1, io.StringIO()))
    with pytest.raises(CommandError) as raised:
        watch.until("the end", lambda sample: sample.run.complete, 0.1)
    text = str(raised.value)
    assert text.startswith("the end: not within 0.1 s") and "pods:\n  none" in text
    assert "TrainingRun r: Complete=False Test (as told)" in text
    assert "LearnerUnit u: Learning=True Test (as told)" in text
    told("TrainingRun", "r", message="too late", **condition("Failed", "True", "DeadlineExceeded"))
    with pytest.raises(CommandError, match="the run failed: too late"):
        watch.until("the end", lambda sample: sample.run.complete, 60)
