"""The demo itself on real pods. It loses a node and a link at the same time, then a pod, a whole unit and the
syncer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import ended

from atoll_cli.views import Sample
from atoll_local.cluster import Cluster
from atoll_local.paths import state_dir

NAME = "atoll"
DEMO_LIMIT = 2100
"""Seconds for the whole demo with nothing cached."""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(DEMO_LIMIT + 300)]


@dataclass(frozen=True)
class Shown:
    """What one demo left."""

    status: int
    output: str
    document: dict[str, Any]
    samples: list[Sample]

    def fault(self, kind: str) -> dict[str, Any]:
        [found] = [fault for fault in self.document["faults"] if fault["kind"] == kind]
        return found

    def before(self, kind: str) -> Sample:
        """The last sample before a fault."""
        return [sample for sample in self.samples if sample.time <= self.fault(kind)["at"]][-1]

    def healed(self, kind: str) -> Sample:
        """The sample in which it was seen healed."""
        return next(sample for sample in self.samples if sample.time >= self.fault(kind)["healedAt"])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One demo with every fault; the cluster is gone afterwards whatever happens."""
    if Cluster(NAME).exists():
        pytest.fail(f"a cluster called {NAME} is up on this machine: `make cluster-down` first")
    folder = tmp_path_factory.mktemp("demo")
    summary, record = folder / "summary.json", folder / "samples.jsonl"
    command = [sys.executable, "-m", "atoll_cli", "demo", "--lose-node", "--cut-link", "--delete-pod"]
    command += ["--kill-syncer", "--name", NAME, "--json", str(summary), "--record", str(record)]
    try:
        done = ended(*command, timeout=DEMO_LIMIT)
        print(done.stdout, done.stderr)
        lines = record.read_text().splitlines() if record.exists() else []
        yield Shown(
            status=done.returncode,
            output=done.stdout + done.stderr,
            document=json.loads(summary.read_text()) if summary.exists() else {},
            samples=[Sample.from_record(json.loads(line)) for line in lines],
        )
    finally:
        Cluster(NAME).down()


def test_the_demo_shows_all_of_it(shown: Shown) -> None:
    assert shown.document.get("failures") == [], shown.output
    assert shown.document["passed"] and shown.document["unbalanced"] == []
    assert shown.status == 0
    # The verdict is on the steps and the pods of the units that a fault did not hit: these.
    others = {fault["kind"]: len(fault["stepsOfOthers"]) for fault in shown.document["faults"]}
    assert others == {"node": 1, "link": 1, "pod": 2, "unit": 2, "syncer": 3}
    assert shown.document["checkpoint"].startswith("gs://atoll/runs/quickstart")
    assert shown.document["marginWanted"] >= 1.0


def test_a_killed_unit_restarts_in_place_and_is_seeded_again(shown: Shown) -> None:
    unit = shown.fault("unit")["unit"]
    before, after = shown.before("unit"), shown.healed("unit")
    assert len(before.pods_of(unit)) == 2
    assert after.units[unit].incarnation == before.units[unit].incarnation + 1
    assert after.units[unit].seeded_step is not None
    assert _uids(after, unit) == _uids(before, unit), "its processes alone were killed"


def test_a_deleted_pod_comes_back_to_its_host_and_its_peer_stays(shown: Shown) -> None:
    fault = shown.fault("pod")
    unit, before, after = fault["unit"], shown.before("pod"), shown.healed("pod")
    assert after.units[unit].incarnation == before.units[unit].incarnation + 1
    [lost] = [pod for pod in before.pods_of(unit) if pod.name == fault["victim"]]
    [peer] = [pod for pod in before.pods_of(unit) if pod.name != fault["victim"]]
    [new] = [pod for pod in after.pods_of(unit) if pod.uid != peer.uid]
    assert peer.uid in _uids(after, unit)
    assert new.uid != lost.uid
    assert new.node == lost.node


def test_a_unit_leaves_a_node_without_power_and_learns_again_when_the_node_is_back(shown: Shown) -> None:
    fault = shown.fault("node")
    unit, before, after = fault["unit"], shown.before("node"), shown.healed("node")
    assert [pod.node for pod in before.pods_of(unit)] == [fault["victim"]]
    assert after.units[unit].incarnation > before.units[unit].incarnation
    assert after.units[unit].seeded_step is not None
    assert not _uids(after, unit) & _uids(before, unit)


def test_a_unit_whose_node_is_cut_off_for_a_minute_trains_on_as_the_same_incarnation(shown: Shown) -> None:
    fault = shown.fault("link")
    unit, before, after = fault["unit"], shown.before("link"), shown.healed("link")
    assert fault["healedAt"] - fault["at"] >= 60
    assert after.units[unit].incarnation == before.units[unit].incarnation == 1
    assert _uids(after, unit) == _uids(before, unit)
    assert after.units[unit].step > before.units[unit].step


def test_the_global_clock_never_goes_back_also_when_the_syncer_is_killed(shown: Shown) -> None:
    steps = [sample.run.step for sample in shown.samples]
    assert steps == sorted(steps)


def test_no_unit_was_restarted_but_for_its_faults(shown: Shown) -> None:
    hits = [fault["unit"] for fault in shown.document["faults"] if fault["kind"] != "link"]
    incarnations = {unit.name: unit.incarnation for sample in shown.samples for unit in sample.units.values()}
    # A node that comes back may refuse a pod before its device plugin is registered.
    assert incarnations.pop(shown.fault("node")["unit"]) >= 2
    assert incarnations == {name: 1 + hits.count(name) for name in incarnations}


def test_the_global_model_is_evaluated_while_it_trains_and_no_fault_touches_the_evaluator(
    shown: Shown,
) -> None:
    found = [sample.run.held_out for sample in shown.samples if sample.run.held_out is not None]
    losses = {each.step: each.loss for each in found if each.loss is not None}
    assert len(losses) >= 3
    assert [each.step for each in found] == sorted(each.step for each in found)
    assert losses[min(losses)] - losses[max(losses)] >= shown.document["marginWanted"]
    pods = [pod for sample in shown.samples for pod in sample.pods.values() if pod.component == "evaluator"]
    assert {pod.container_restarts for pod in pods} == {0}


def test_nothing_is_left_behind(shown: Shown) -> None:
    folder = str(state_dir(NAME))
    assert not state_dir(NAME).exists()
    assert folder not in Path("/proc/self/mounts").read_text()
    links = ended("ip", "-o", "link")
    assert links.returncode == 0 and "atoll" not in links.stdout
    assert not list(Path("/sys/fs/cgroup").glob(f"*/atoll-{NAME}"))
    assert not Path(f"/sys/fs/cgroup/atoll-{NAME}").exists()
    assert _processes_naming(folder) == []


def _uids(sample: Sample, unit: str) -> set[str]:
    return {pod.uid for pod in sample.pods_of(unit)}


def _processes_naming(folder: str) -> list[str]:
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            commands.append((entry / "cmdline").read_text(errors="replace"))
    return [command for command in commands if folder in command]
