"""From which state a shard starts if its run was at its end and the target has changed since."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import OuterSpec, RunContract, TargetSpec
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.protocol.identifiers import CUT_EPOCH
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.syncer.recovery import Start, recover

LAYOUT = build_layout([TensorInfo("w", (10,), stacked=False, embedding=False)], 1)


@pytest.fixture(name="run")
def run_fixture(make_run: Any) -> RunContract:
    outer = OuterSpec(fragments=1, interval=1, overlap=1, learning_rate=1.0, momentum=0.0)
    made: RunContract = make_run(outer=outer, target=TargetSpec(global_steps=1))
    return made


def started(run: RunContract, folder: Path, store: GlobalStore, now: float = 2e9) -> Start:
    rules = Rules.of(run)
    theta = {"w": np.zeros(10, np.float32)}
    return recover(run, rules, LAYOUT, folder / "journal", store, lambda: theta, now=lambda: now)


def test_cuts_of_a_later_process_have_higher_numbers_also_where_the_volume_is_lost(
    run: RunContract, tmp_path: Path
) -> None:
    store, numbers = GlobalStore(run.checkpoint.uri), []
    for folder, seconds in (("a", 100.0), ("a", 200.0), ("b", 300.0)):
        start = started(run, tmp_path / folder, store, CUT_EPOCH + seconds)
        numbers.append(start.machine.cuts.following(0).number)
        start.journal.close()
    assert numbers == [100, 200, 300]


def test_the_clock_that_was_announced_is_known_after_a_restart(run: RunContract, tmp_path: Path) -> None:
    store = GlobalStore(run.checkpoint.uri)
    start = started(run, tmp_path, store)
    for clock in (5, 6):
        start.journal.advance(clock)
    start.journal.close()
    again = started(run, tmp_path, store)
    assert (again.machine.orders.step, again.machine.step) == (6, 0), "what was in flight is opened again"
    again.journal.close()


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
