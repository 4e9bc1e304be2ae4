"""What `atoll status` and the demo read is what the definitions hold: unknown fields would be pruned."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from control_bench import Bench

from atoll_cli.demo.console import Console
from atoll_cli.demo.watch import Observer, Watch, diagnose
from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl
from atoll_cli.views import HeldOutView, RunView, Sample, UnitView
from atoll_local.controlplane import ControlPlane
from atoll_local.programs import find

ROOT = Path(__file__).resolve().parents[2]
RUN, UNIT = "quickstart", "quickstart-v5p-0"
COST = {"failures": 1, "seconds": 8.5, "chipSeconds": 34.0, "steps": 17}
LEDGER = {"fragments": 8, "trained": 4096, "merged": 4000, "inFlight": 64, "discarded": {"Missed": 32}}
HELD_OUT = {"step": 100, "loss": 2.75, "tokens": 4096, "split": "heldout", "seconds": 1.5, "time": 1.7e9}
FINAL = "gs://b/global/300"


def condition(kind: str, status: str, reason: str = "Test") -> dict[str, str]:
    said = {"reason": reason, "message": "as told", "lastTransitionTime": "2026-11-21T00:00:00Z"}
    return {"type": kind, "status": status, **said}


RUN_STATUS: dict[str, Any] = {
    "phase": "Running", "message": "two of three", "unitsSummary": "2/3", "globalStep": 120, "targetSteps": 300,
    "tokens": 4096, "tokensPerSecond": 512.5, "loss": 2.5, "quorum": "2/3 (K=1)", "bytesIn": 11, "bytesOut": 12,
    "checkpoint": {"step": 100}, "evaluation": HELD_OUT, "finalCheckpoint": FINAL, "syncerRestarts": 1,
    "lost": {**COST, "byReason": {"NodeLost": COST}}, "ledger": LEDGER,
    "conditions": [condition("Complete", "False")],
}  # fmt: skip
RUN_VIEW = RunView(
    name=RUN, phase="Running", message="two of three", units="2/3", step=120, target=300, tokens=4096,
    tokens_per_second=512.5, loss=2.5, quorum="2/3 (K=1)", bytes_in=11, bytes_out=12, checkpoint_step=100,
    final_checkpoint=FINAL, held_out=HeldOutView(step=100, loss=2.75, tokens=4096), syncer_restarts=1,
    lost={"NodeLost": COST},
)  # fmt: skip
UNIT_STATUS: dict[str, Any] = {
    "phase": "Learning", "incarnation": 2, "step": 130, "loss": 2.25, "tokensPerSecond": 256.5, "restartCount": 1,
    "lastHealSeconds": 8.5, "seededStep": 100, "ledger": LEDGER, "conditions": [condition("Learning", "True")],
}  # fmt: skip
UNIT_VIEW = UnitView(
    name=UNIT, phase="Learning", pool="v5p", incarnation=2, learning=True, step=130, loss=2.25,
    tokens_per_second=256.5, restarts=1, heal_seconds=8.5, seeded_step=100,
)  # fmt: skip


@pytest.fixture
def told(bench: Bench, plane: ControlPlane) -> Bench:
    """One run with one unit, each with a status."""
    sample = str(ROOT / "manifests" / "samples" / "quickstart.yaml")
    plane.kubectl("apply", "-n", bench.namespace, "-f", sample)
    place = {"accelerator": "tpu-v5p-slice", "topology": "2x2x1", "batch": 4, "stream": 0, "streams": 3}
    unit = {"apiVersion": "atoll.dev/v1alpha1", "kind": "LearnerUnit", "metadata": {"name": UNIT}}
    bench.create({**unit, "spec": {"run": RUN, "pool": "v5p", **place}})
    for kind, name, status in (("TrainingRun", RUN, RUN_STATUS), ("LearnerUnit", UNIT, UNIT_STATUS)):
        bench.api.patch(kind, bench.namespace, name, {"status": status}, "/status")
    return bench


def test_the_demo_reads_every_field_and_ends_a_wait_with_a_diagnosis(
    told: Bench, plane: ControlPlane, tmp_path: Path
) -> None:
    record = tmp_path / "samples.jsonl"
    tool = Kubectl(program=find("kubectl"), kubeconfig=plane.kubeconfig, namespace=told.namespace)
    watch = Watch(
        Observer(tool, RUN, print),
        lambda: diagnose(tool, RUN),
        Console(1, io.StringIO()),
        record,
    )
    sample = watch.look()
    assert (sample.run, sample.units) == (RUN_VIEW, {UNIT: UNIT_VIEW})
    assert [Sample.from_record(json.loads(line)) for line in record.read_text().splitlines()] == [sample]
    with pytest.raises(CommandError) as raised:
        watch.until("the end", lambda sample: sample.run.complete, 0.1)
    text = str(raised.value)
    assert text.startswith("the end: not within 0.1 s") and "pods:\n  none" in text
    assert f"TrainingRun {RUN}: Complete=False Test (as told)" in text
    assert f"LearnerUnit {UNIT}: Learning=True Test (as told)" in text
    failed = {"conditions": [condition("Failed", "True", "DeadlineExceeded")], "message": "too late"}
    told.api.patch("TrainingRun", told.namespace, RUN, {"status": failed}, "/status")
    with pytest.raises(CommandError, match="the run failed: too late"):
        watch.until("the end", lambda sample: sample.run.complete, 60)
