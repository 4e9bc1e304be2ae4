"""`kubectl atoll` on a real API server: by the rights of Kubernetes' role `edit`, and carried out by the operator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from apiserver import with_token
from commands import ended

from atoll_local.programs import find


class Plugin:
    """The plugin, called by a user with these roles in the namespace."""

    def __init__(self, bench: Any, plane: Any, folder: Path, *roles: str) -> None:
        self._bench = bench
        for role in roles:
            granted = (f"--clusterrole={role}", f"--serviceaccount={bench.namespace}:default")
            plane.kubectl("-n", bench.namespace, "create", "rolebinding", role, *granted)
        kubeconfig = with_token(plane, bench.api, folder / "kubeconfig", "default", bench.namespace)
        self._environment = {"KUBECONFIG": str(kubeconfig), "ATOLL_KUBECTL": str(find("kubectl"))}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "atoll_cli.plugin", *arguments, "-n", self._bench.namespace)
        return ended(*command, environment=self._environment)

    def ask(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_requests_are_carried_out_once_told_in_events_and_cost_no_budget(
    bench: Any, plane: Any, tmp_path: Path
) -> None:
    bench.operator()
    _, status = bench.learn(recovery={"maxRestarts": 0})
    ask = Plugin(bench, plane, tmp_path, "atoll-edit", "atoll-view").ask

    before = bench.uids("r-one-0")
    assert ask("heal", "lu/r-one-0") == "learnerunit.atoll.dev/r-one-0 patched\n"
    bench.until("another incarnation", lambda: bench.unit("r-one-0")["incarnation"] == 2)
    assert bench.uids("r-one-0") == before, "its pods stay"
    assert bench.unit("r-one-0")["lastFailure"]["reason"] == "RestartRequested"

    ask("drain", "r-one-1")
    bench.until("other pods", lambda: set(bench.pods("r-one-1")) == {"r-one-1-2-0"})
    assert bench.unit("r-one-1")["lastFailure"]["reason"] == "HostMaintenance"

    ask("checkpoint", "trun/r")
    saved = bench.until("a checkpoint", lambda: bench.status("TrainingRun", "r")["checkpoint"].get("step"))
    assert set(bench.syncers.orders[f"{bench.namespace}/r/0"]) == {saved} and saved >= status["globalStep"]

    ask("scale", "r", "--units", "2")
    bench.until("two units", lambda: bench.names("LearnerUnit") == {"r-one-0", "r-one-1"})
    ask("suspend", "r")
    bench.until_condition("TrainingRun", "r", "Suspended", "True")
    ask("resume", "r")
    bench.until_condition("TrainingRun", "r", "Suspended", "False")
    told = {"RestartRequested", "HostMaintenance", "CheckpointRequested", "Scaled"}
    told |= {"SuspendRequested", "ResumeRequested"}
    bench.until("Events", lambda: told <= {event["reason"] for event in bench.list("Event")})
    assert {bench.unit(name)["restartCount"] for name in ("r-one-0", "r-one-1")} == {1}
    assert "r-one-0" in ask("status", "r") and "r-one-0" in ask("top", "r")


def test_who_may_only_view_changes_nothing(bench: Any, plane: Any, tmp_path: Path) -> None:
    bench.run()
    plugin = Plugin(bench, plane, tmp_path, "atoll-view")
    assert "r" in plugin.ask("status")
    refused = plugin("suspend", "r")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Forbidden" in refused.stderr and 'cannot patch resource "trainingruns"' in refused.stderr
    assert not bench.get("TrainingRun", "r")["spec"]["suspend"]


def test_kubectl_itself_completes_runs_and_units(bench: Any, plane: Any, tmp_path: Path) -> None:
    bench.run("alpha")
    environment = {"KUBECONFIG": str(plane.kubeconfig), "ATOLL_KUBECTL": str(find("kubectl"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ("__complete", "atoll", "suspend", "-n", bench.namespace, "trun/")
    done = ended(find("kubectl"), *words, environment={**environment, "PATH": path})
    assert done.stdout.splitlines() == ["trun/alpha", ":4"]
