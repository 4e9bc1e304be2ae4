"""What `atoll status` and the demo read is what the definitions hold: unknown fields would be pruned."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll_cli.demo.console import Console
from atoll_cli.demo.watch import Watch
from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl
from atoll_cli.views import HeldOutView, RunView, Sample, UnitView
from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import ESTABLISHED
from atoll_local.programs import find

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build the API server
]
ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "default"
UNIT = "quickstart-v5p-0"


def condition(kind: str, status: str, reason: str = "Test") -> dict[str, str]:
    time = "2026-11-21T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "as told",
        "lastTransitionTime": time,
    }


COST = {"failures": 1, "seconds": 8.5, "chipSeconds": 34.0, "steps": 17}
RUN_STATUS = {
    "phase": "Running",
    "message": "two of three",
    "unitsSummary": "2/3",
    "globalStep": 120,
    "targetSteps": 300,
    "tokens": 4096,
    "tokensPerSecond": 512.5,
    "loss": 2.5,
    "quorum": "2/3 (K=1)",
    "bytesIn": 11,
    "bytesOut": 12,
    "checkpoint": {"step": 100},
    "evaluation": {
        "step": 100,
        "loss": 2.75,
        "tokens": 4096,
        "split": "heldout",
        "seconds": 1.5,
        "time": 1.7e9,
    },
    "finalCheckpoint": "gs://b/global/300",
    "syncerRestarts": 1,
    "lost": {**COST, "byReason": {"NodeLost": COST}},
    "ledger": {"fragments": 8, "trained": 4096, "merged": 4000, "inFlight": 64, "discarded": {"Missed": 32}},
    "conditions": [condition("Complete", "False")],
}
UNIT_STATUS = {
    "phase": "Learning",
    "incarnation": 2,
    "step": 130,
    "loss": 2.25,
    "tokensPerSecond": 256.5,
    "restartCount": 1,
    "lastHealSeconds": 8.5,
    "seededStep": 100,
    "ledger": {"fragments": 8, "trained": 4096, "merged": 4000, "inFlight": 64, "discarded": {"Missed": 32}},
    "conditions": [condition("Learning", "True")],
}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl on an API server with the definitions, and one run with one unit, each with a status."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        tool = Kubectl(program=find("kubectl"), kubeconfig=plane.kubeconfig)
        tool.run("apply", "--server-side", "-k", str(ROOT / "crds"))
        tool.run("wait", ESTABLISHED, "crd", "--all", "--timeout=30s")
        tool.run("apply", "-n", NAMESPACE, "-f", str(ROOT / "manifests" / "samples" / "quickstart.yaml"))
        unit = {
            "apiVersion": "atoll.dev/v1alpha1",
            "kind": "LearnerUnit",
            "metadata": {"name": UNIT},
            "spec": {
                "run": "quickstart",
                "pool": "v5p",
                "accelerator": "tpu-v5p-slice",
                "topology": "2x2x1",
                "batch": 4,
                "stream": 0,
                "streams": 3,
            },
        }
        tool.apply([unit], "-n", NAMESPACE)
        _tell(tool, "trainingrun/quickstart", RUN_STATUS)
        _tell(tool, f"learnerunit/{UNIT}", UNIT_STATUS)
        yield tool


def _tell(kubectl: Kubectl, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl.run("patch", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)


def make_watch(kubectl: Kubectl, record: Path | None = None) -> Watch:
    return Watch(kubectl, NAMESPACE, "quickstart", Console(1, io.StringIO()), record)


def test_every_field_that_is_read_is_kept_by_the_api_server(kubectl: Kubectl, tmp_path: Path) -> None:
    record = tmp_path / "samples.jsonl"
    sample = make_watch(kubectl, record).look()
    assert sample.run == RunView(
        name="quickstart",
        phase="Running",
        message="two of three",
        units="2/3",
        step=120,
        target=300,
        tokens=4096,
        tokens_per_second=512.5,
        loss=2.5,
        quorum="2/3 (K=1)",
        bytes_in=11,
        bytes_out=12,
        checkpoint_step=100,
        final_checkpoint="gs://b/global/300",
        held_out=HeldOutView(step=100, loss=2.75, tokens=4096),
        syncer_restarts=1,
        lost={"NodeLost": COST},
    )
    assert sample.units == {
        UNIT: UnitView(
            name=UNIT,
            phase="Learning",
            pool="v5p",
            incarnation=2,
            learning=True,
            step=130,
            loss=2.25,
            tokens_per_second=256.5,
            restarts=1,
            heal_seconds=8.5,
            seeded_step=100,
        )
    }
    assert [Sample.from_record(json.loads(line)) for line in record.read_text().splitlines()] == [sample]


def test_a_wait_that_is_too_long_ends_with_a_diagnosis(kubectl: Kubectl) -> None:
    with pytest.raises(CommandError) as raised:
        make_watch(kubectl).until("the end", lambda sample: sample.run.complete, 0.1)
    text = str(raised.value)
    assert text.startswith("the end: not within 0.1 s")
    assert "TrainingRun quickstart: Complete=False Test (as told)" in text
    assert f"LearnerUnit {UNIT}: Learning=True Test (as told)" in text
    assert "pods:\n  none" in text


def test_a_run_that_failed_is_not_waited_for(kubectl: Kubectl) -> None:
    failed = {"conditions": [condition("Failed", "True", "DeadlineExceeded")], "message": "too late"}
    _tell(kubectl, "trainingrun/quickstart", failed)
    try:
        with pytest.raises(CommandError, match="the run failed: too late"):
            make_watch(kubectl).until("the end", lambda sample: sample.run.complete, 60)
    finally:
        _tell(kubectl, "trainingrun/quickstart", RUN_STATUS)


def atoll(kubectl: Kubectl, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atoll_cli", *arguments]
    environment = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_status_shows_a_run_and_its_units(kubectl: Kubectl) -> None:
    done = atoll(kubectl, "status", "quickstart", "-n", NAMESPACE)
    assert done.returncode == 0, done.stderr
    assert "quickstart: Running · units 2/3 · step 120/300" in done.stdout
    assert "newest checkpoint: global step 100 gs://b/global/300" in done.stdout
    assert "held-out loss: 2.7500 at global step 100, over 4,096 tokens" in done.stdout
    assert "lost to NodeLost: 1 failure, 8.5 s, 34 chip-seconds, 17 steps" in done.stdout
    assert UNIT in done.stdout


def test_every_run_is_listed_with_its_namespace(kubectl: Kubectl) -> None:
    done = atoll(kubectl, "status", "-A")
    assert done.returncode == 0, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["NAMESPACE", "RUN", "PHASE", "UNITS", "STEP", "TOKENS/S", "LOSS"]
    assert rows == [[NAMESPACE, "quickstart", "Running", "2/3", "120/300", "512", "2.500"]]


def test_the_ledger_is_kept_by_the_api_server_and_shown(kubectl: Kubectl) -> None:
    done = atoll(kubectl, "ledger", "quickstart", "-n", NAMESPACE, "--json")
    assert done.returncode == 0, done.stderr
    figures = RUN_STATUS["ledger"] | {"balance": 0}
    shown = json.loads(done.stdout)
    assert shown["units"] == {UNIT: figures}
    assert shown["total"] == figures
    assert shown["gone"]["trained"] == 0
    assert "512" in atoll(kubectl, "ledger", "quickstart", "-n", NAMESPACE).stdout


def test_status_of_a_run_that_is_not_there_is_one_sentence(kubectl: Kubectl) -> None:
    done = atoll(kubectl, "status", "quickstarte")
    assert done.returncode == 1
    assert done.stderr == "atoll: no TrainingRun is called 'quickstarte' in this namespace\n"


@pytest.mark.long
def test_figures_of_a_report_that_moves_stand_in_the_status(bench: Any) -> None:
    """On the real API server; the syncer's words are the test's."""
    bench.operator()
    run = bench.run(units=1, recovery={"maxRestarts": 1, "inPlace": False})
    bench.settled(run, ["r-one-0", "r-two-0"])
    status = bench.serve(run, time=1000.0)
    for name, merged, staleness in (("r-one-0", 300, 0), ("r-two-0", 100, 7)):
        status["units"][name] |= {"stepSeconds": 0.5, "staleness": staleness}
        status.setdefault("ledger", {})[name] = {"trained": merged, "merged": merged}

    def told(kind: str, name: str) -> dict[str, Any]:
        """After ten more seconds of the syncer's, at 2 and 1 Gbit/s."""
        status["bytesIn"] = status.get("bytesIn", 0) + 2_500_000_000
        status["bytesOut"] = status.get("bytesOut", 0) + 1_250_000_000
        status["time"] += 10.0
        return dict(bench.get(kind, name).get("status", {}))

    def half_way() -> bool:
        seen = told("TrainingRun", "r")
        rates = seen.get("gbitPerSecondIn", 0), seen.get("gbitPerSecondOut", 0)
        return rates == (pytest.approx(2, rel=0.02), pytest.approx(1, rel=0.02))

    bench.until("the rates", half_way, 90)
    left = told("TrainingRun", "r")["estimatedSecondsLeft"]
    assert left == 450, "5,000 tokens were a tenth, at 100 a second"
    status.update(globalStep=50, tokens=25000)
    bench.until("the time left", lambda: told("TrainingRun", "r").get("estimatedSecondsLeft") == 250)
    for name, share, staleness in (("r-one-0", 75.0, 0), ("r-two-0", 25.0, 7)):
        bench.until(
            name,
            lambda name=name, wanted=(share, staleness): (
                (seen := told("LearnerUnit", name)).get("sharePercent"), seen.get("staleness")
            ) == wanted,
        )  # fmt: skip

    bench.kubelet.fail(bench.namespace, "r-two-0-1-0", 137, reason="OOMKilled")
    bench.until("replaced", lambda: told("LearnerUnit", "r-two-0")["incarnation"] == 2)
    status["units"]["r-two-0"] |= {"incarnation": 2, "firstMergeTime": time.time() + 20}
    healed = bench.until("healed", lambda: told("LearnerUnit", "r-two-0").get("lost"))
    heal = bench.get("LearnerUnit", "r-two-0")["status"]["lastHeal"]
    assert healed["seconds"] > 20
    figures = {
        "seconds": healed["seconds"],
        "chipSeconds": round(8 * healed["seconds"], 2),
        "steps": round(healed["seconds"] / 0.5),
    }
    assert {key: heal[key] for key in figures} == figures
    assert healed == {"failures": 1, **figures, "byReason": {"OutOfMemory": {"failures": 1, **figures}}}

    bench.kubelet.fail(bench.namespace, "r-two-0-2-0", 64, "DataInvalid: no such shard")
    bench.until("given up", lambda: told("LearnerUnit", "r-two-0")["phase"] == "Failed")
    by_reason = bench.get("LearnerUnit", "r-two-0")["status"]["lost"]["byReason"]
    assert {reason: part["failures"] for reason, part in by_reason.items()} == {
        "DataInvalid": 1,
        "OutOfMemory": 1,
    }
    bench.until("the run's", lambda: told("TrainingRun", "r").get("lost", {}).get("byReason") == by_reason)
    pools = [pool for pool in bench.get("TrainingRun", "r")["spec"]["pools"] if pool["name"] == "one"]
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": {"pools": pools}})
    bench.until("the unit is gone", lambda: len(bench.api.list("LearnerUnit", bench.namespace)) == 1)
    assert bench.get("TrainingRun", "r")["status"]["lost"]["byReason"] == by_reason
