"""The demo itself on real pods: a unit and the syncer killed, the others untouched, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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

    @property
    def killed(self) -> int:
        """Index of the last sample of the victim's first incarnation as a whole."""
        victim = self.document["victim"]
        first = self.document["incarnationBefore"]
        healing = next(
            index
            for index, sample in enumerate(self.samples)
            if victim in sample.units and sample.units[victim].incarnation > first
        )
        return healing - 1

    @property
    def healed(self) -> int:
        """Index of the first sample in which the victim's next incarnation is merged."""
        victim = self.document["victim"]
        return next(
            index
            for index, sample in enumerate(self.samples)
            if index > self.killed
            and sample.units[victim].learning
            and sample.units[victim].incarnation > self.document["incarnationBefore"]
        )

    @property
    def others(self) -> set[str]:
        return set(self.samples[self.killed].units) - {self.document["victim"]}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One demo, with the syncer killed as well; the cluster is gone afterwards whatever happens."""
    if Cluster.existing(NAME) is not None:
        pytest.fail(f"a cluster called {NAME} is up on this machine: `make cluster-down` first")
    folder = tmp_path_factory.mktemp("demo")
    summary, record = folder / "summary.json", folder / "samples.jsonl"
    command = [sys.executable, "-m", "atoll_cli", "demo", "--delete-pod", "--kill-syncer", "--name", NAME]
    command += ["--json", str(summary), "--record", str(record)]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEMO_LIMIT,
            check=False,
        )
        print(done.stdout)
        lines = record.read_text().splitlines() if record.exists() else []
        yield Shown(
            status=done.returncode,
            output=done.stdout,
            document=json.loads(summary.read_text()) if summary.exists() else {},
            samples=[Sample.from_record(json.loads(line)) for line in lines],
        )
    finally:
        left = Cluster.existing(NAME)
        if left is not None:
            left.down()


def test_the_demo_shows_all_of_it(shown: Shown) -> None:
    assert shown.document.get("failures") == [], shown.output
    assert shown.document["passed"]
    assert shown.status == 0


def test_a_unit_of_two_hosts_was_killed_and_came_back_reseeded(shown: Shown) -> None:
    victim = shown.document["victim"]
    before, after = shown.samples[shown.killed], shown.samples[shown.healed]
    assert len(before.pods_of(victim)) == 2
    assert after.units[victim].incarnation == before.units[victim].incarnation + 1
    assert after.units[victim].seeded_step is not None
    old = {pod.uid for pod in before.pods_of(victim)}
    assert {pod.uid for pod in after.pods_of(victim)} == old, (
        "its processes alone were killed: it restarts in place"
    )


def test_a_pod_that_was_deleted_came_back_to_its_host_and_its_peer_stayed(shown: Shown) -> None:
    victim, deleted = shown.document["victim"], shown.document["podDeleted"]
    first = next(
        sample for sample in shown.samples if sum(unit.learning for unit in sample.units.values()) == 3
    )
    last = shown.samples[shown.killed]
    [lost] = [pod for pod in first.pods_of(victim) if pod.name == deleted]
    [peer] = [pod for pod in first.pods_of(victim) if pod.name != deleted]
    assert last.units[victim].learning
    assert last.units[victim].incarnation == 2
    [new] = [pod for pod in last.pods_of(victim) if pod.uid != peer.uid]
    assert peer.uid in {pod.uid for pod in last.pods_of(victim)}, "what is sound stays"
    assert new.uid != lost.uid
    assert new.node == lost.node
    for unit in shown.others:
        assert [pod.uid for pod in last.pods_of(unit)] == [pod.uid for pod in first.pods_of(unit)]


def test_pods_of_other_units_kept_their_uids(shown: Shown) -> None:
    before = shown.samples[shown.killed]
    for sample in shown.samples[shown.killed : shown.healed + 1]:
        for unit in shown.others:
            assert [pod.uid for pod in sample.pods_of(unit)] == [pod.uid for pod in before.pods_of(unit)]


def test_the_other_units_made_steps_while_it_healed(shown: Shown) -> None:
    before, after = shown.samples[shown.killed], shown.samples[shown.healed]
    assert len(shown.others) >= 2
    for unit in shown.others:
        assert after.units[unit].step > before.units[unit].step
        assert shown.document["stepsOfOthers"][unit] > 0


def test_the_syncer_was_killed_and_went_on_where_it_was(shown: Shown) -> None:
    assert shown.document["syncerRestarts"] >= 1
    steps = [sample.run.step for sample in shown.samples[shown.healed :]]
    assert steps == sorted(steps), "the global clock went back"
    incarnations = {unit.name: unit.incarnation for sample in shown.samples for unit in sample.units.values()}
    assert incarnations == {name: 3 if name == shown.document["victim"] else 1 for name in incarnations}


def test_the_run_is_complete_and_the_global_model_better_by_the_margin(shown: Shown) -> None:
    last = shown.samples[-1]
    assert last.run.complete
    assert last.run.step >= shown.document["targetStep"]
    assert shown.document["checkpoint"].startswith("gs://atoll/runs/quickstart")
    gain = shown.document["heldOutUntrained"] - shown.document["heldOutTrained"]
    assert gain >= shown.document["marginWanted"] >= 1.0


def test_the_global_model_was_evaluated_while_it_trained_and_what_was_killed_touched_no_evaluator(
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
    links = subprocess.run(
        ["ip", "-o", "link"], capture_output=True, text=True, timeout=10, check=True
    ).stdout
    assert "atoll" not in links
    assert not list(Path("/sys/fs/cgroup").glob(f"*/atoll-{NAME}"))
    assert not Path(f"/sys/fs/cgroup/atoll-{NAME}").exists()
    assert _processes_naming(folder) == []


def _processes_naming(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in command:
            found.append(command)
    return found
