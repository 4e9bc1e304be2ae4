"""Tools that wait end for a run in every state: kubectl, and helm, which judges by the kstatus library of Flux."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
from control_bench import training_run

from atoll_local.programs import find

UNITS = ["r-one-0", "r-one-1", "r-two-0"]
WAIT = 120
"""Seconds; a bound for a machine that others use too."""


class Tools:
    """helm and kubectl on one namespace, and a chart with one run."""

    def __init__(self, plane: Any, namespace: str, folder: Path) -> None:
        self._kubeconfig, self._namespace, self._chart = plane.kubeconfig, namespace, folder / "chart"
        (self._chart / "templates").mkdir(parents=True)
        (self._chart / "Chart.yaml").write_text("{apiVersion: v2, name: run, version: 0.0.1}\n")
        body = training_run()
        body["spec"] |= {"suspend": "SUSPEND", "target": {"globalSteps": "STEPS"}}
        text = json.dumps(body).replace('"SUSPEND"', "{{ .Values.suspend }}")
        text = text.replace('"STEPS"', "{{ .Values.steps }}")
        (self._chart / "templates" / "run.yaml").write_text(text)

    def helm(self, **values: Any) -> subprocess.Popen[str]:
        """`helm upgrade --install --wait`, started."""
        values = {"suspend": False, "steps": 100, **values}
        (self._chart / "values.yaml").write_text(yaml.safe_dump(values))
        command = ["helm", "upgrade", "--install", "r", str(self._chart), "--wait", f"--timeout={WAIT}s"]
        return self._start(*command)

    def wait(self, condition: str) -> subprocess.Popen[str]:
        """`kubectl wait`, started."""
        return self._start("kubectl", "wait", f"--for=condition={condition}", f"--timeout={WAIT}s", "trun/r")

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        command = [str(find(program)), f"--kubeconfig={self._kubeconfig}", f"--namespace={self._namespace}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*command, *arguments], text=True, **pipes)


def end(*processes: subprocess.Popen[str], well: bool = True) -> str:
    """Wait for all, which have to end well, or not so; what the last one said."""
    for process in processes:
        said, _ = process.communicate(timeout=WAIT + 30)
        assert (process.returncode == 0) is well, said
    return said


def test_helm_and_kubectl_end_when_a_run_trains_rests_and_ends(
    bench: Any, plane: Any, tmp_path: Path
) -> None:
    tools = Tools(plane, bench.namespace, tmp_path)
    bench.operator()
    install = tools.helm()
    run = bench.until("the run", lambda: bench.get("TrainingRun", "r"))
    ready = tools.wait("Ready")
    bench.settled(*UNITS)
    assert install.poll() is None, "no unit learns yet"
    status = bench.serve(run)
    end(install, ready)
    assert bench.condition("TrainingRun", "r", "Ready")[:2] == ("True", "QuorumLearning")

    end(tools.helm(suspend=True))
    assert bench.condition("TrainingRun", "r", "Ready")[:2] == ("True", "Suspended")
    assert bench.condition("TrainingRun", "r", "Suspended")[0] == "True"

    resume, complete = tools.helm(), tools.wait("Complete")
    bench.settled(*UNITS)
    status |= bench.report(run, "Finished")
    end(complete, resume)
    assert bench.condition("TrainingRun", "r", "Ready")[:2] == ("True", "TargetReached")


def test_helm_and_kubectl_end_for_a_run_that_fails(bench: Any, plane: Any, tmp_path: Path) -> None:
    tools = Tools(plane, bench.namespace, tmp_path)
    bench.operator()
    install = tools.helm()
    run = bench.until("the run", lambda: bench.get("TrainingRun", "r"))
    failed = tools.wait("Failed")
    bench.serve(run, phase="Failed", message="the model cannot be made")
    end(failed)
    assert bench.condition("TrainingRun", "r", "Stalled")[0] == "True"
    assert "status: Failed" in end(install, well=False)
