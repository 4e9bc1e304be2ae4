"""What a shard starts from when its run was at its end, and the target has changed since."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll_runtime.checkpoint import GlobalStore, StoreError
from atoll_runtime.contract import OuterSpec, RunContract, TargetSpec
from atoll_runtime.sync.events import CutId, RecordCut, Tick
from atoll_runtime.sync.fragments import TensorInfo, build_layout
from atoll_runtime.sync.rules import Rules
from atoll_runtime.syncer.recovery import Start, durable, meta_of, part_of, recover

LAYOUT = build_layout([TensorInfo("w", (10,), stacked=False, embedding=False)], 1)


class Unreachable(GlobalStore):
    """Its bucket does not say which cuts stand."""

    def is_complete(self, step: int) -> bool:
        raise StoreError(f"{self.uri}: no answer")


@pytest.fixture(name="run")
def run_fixture(make_run: Any) -> RunContract:
    outer = OuterSpec(fragments=1, interval=1, overlap=1, learning_rate=1.0, momentum=0.0)
    made: RunContract = make_run(outer=outer, target=TargetSpec(global_steps=1))
    return made


def started(run: RunContract, folder: Path, store: GlobalStore) -> Start:
    rules = Rules.of(run)
    return recover(run, rules, LAYOUT, folder / "journal", store, lambda: {"w": np.zeros(10, np.float32)})


def ended(run: RunContract, folder: Path, *, stands: bool) -> None:
    """A shard is killed that has recorded the final cut of step 1, before it noted that this one is whole."""
    store = GlobalStore(run.checkpoint.uri)
    start = started(run, folder, store)
    start.machine.pace.step = 1
    (cut,) = (each for each in start.machine.handle(Tick(), 0.0) if isinstance(each, RecordCut))
    assert cut.cut == CutId(1, True)
    start.journal.remember(durable(start.machine.record(), 0, 0))
    start.journal.close()
    if stands:
        rules, lineage = start.machine.rules, start.journal.lineage
        store.save_part(part_of(run, rules, LAYOUT, 1, start.state.snapshot(), cut.record, lineage))
        store.complete(1, 1, meta_of(run, LAYOUT, {}))


@pytest.mark.parametrize("stands", [True, False])
def test_a_final_cut_that_stands_ends_the_run_and_another_one_is_given_up_for_the_new_target(
    run: RunContract, tmp_path: Path, stands: bool
) -> None:
    ended(run, tmp_path, stands=stands)
    raised = run.model_copy(update={"target": TargetSpec(global_steps=9)})
    start = started(raised, tmp_path, GlobalStore(run.checkpoint.uri))
    cuts = [each.cut for each in start.machine.handle(Tick(), 0.0) if isinstance(each, RecordCut)]
    assert cuts == [CutId(1, True) if stands else CutId(2)]
    assert start.machine.finishing is stands
    start.journal.close()


def test_a_bucket_that_does_not_answer_is_asked_again_whether_the_final_cut_stands(
    run: RunContract, tmp_path: Path
) -> None:
    ended(run, tmp_path, stands=False)
    raised = run.model_copy(update={"target": TargetSpec(global_steps=9)})
    with pytest.raises(StoreError, match="no answer"):
        started(raised, tmp_path, Unreachable(run.checkpoint.uri))
    start = started(raised, tmp_path, GlobalStore(run.checkpoint.uri))
    assert start.machine.outdated and start.restarts == 1
    start.journal.close()


def test_two_lives_of_a_volume_that_came_back_from_a_snapshot_have_series_of_their_own(
    run: RunContract, tmp_path: Path
) -> None:
    store = GlobalStore(run.checkpoint.uri)
    started(run, tmp_path / "volume", store).journal.close()
    shutil.copytree(tmp_path / "volume", tmp_path / "snapshot")
    lives = [started(run, tmp_path / folder, store) for folder in ("volume", "snapshot")]
    for life in lives:
        life.journal.close()
    first, second = lives
    assert (first.journal.lineage, first.restarts) == (second.journal.lineage, second.restarts)
    assert first.state.series != second.state.series
