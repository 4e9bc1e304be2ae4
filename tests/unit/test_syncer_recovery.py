"""From which state a shard starts, and what it leaves of it for the other shards and units."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import OuterSpec, RunContract, TargetSpec
from atoll_runtime.protocol.effects import RecordCut
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.protocol.identifiers import CUT_EPOCH
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.syncer.recovery import Start, meta_of, part_of, recover

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


@pytest.mark.parametrize("restarts", [0, 1], ids=["at-once", "and-restarted"])
@pytest.mark.parametrize(
    "change",
    [{"shards": 3}, {"uid": "2"}, {"uid": "2", "shards": 3}, {}],
    ids=["another-number-of-shards", "another-run", "both", "volumes-lost"],
)
def test_the_checkpoint_from_which_shards_start_stays_complete(
    make_run: Any, tmp_path: Path, change: dict[str, Any], restarts: int
) -> None:
    tensors = [TensorInfo(name, (10,), stacked=False, embedding=False) for name in "abc"]
    outer = OuterSpec(fragments=1, interval=1, overlap=1)
    theta = {name: np.ones(10, np.float32) for name in "abc"}

    def start(run: RunContract, shard: int, volume: str) -> Start:
        rules, layout = Rules.of(run, shard), build_layout(tensors, 1, len(run.shards))
        return recover(run, rules, layout, tmp_path / volume / str(shard) / "journal", store, lambda: theta)

    def save(run: RunContract, start: Start, record: Any) -> None:
        rules, state = start.machine.rules, start.state
        held = tuple(state.fragments)
        store.save_part(part_of(run, rules, state.layout, 0, held, record, start.journal.lineage))

    earlier = make_run(outer=outer, shards=2, uid="1")
    store = GlobalStore(earlier.checkpoint.uri)
    for shard in (0, 1):
        first = start(earlier, shard, "earlier")
        save(earlier, first, first.machine.part(first.machine.cuts.newest))
        first.journal.close()
    store.complete(0, 2, meta_of(earlier, build_layout(tensors, 1, 2)))

    run = make_run(outer=outer, **({"shards": 2, "uid": "1"} | change))
    for shard in range(len(run.shards)):
        found = start(run, shard, "later")
        assert found.message == "started from the checkpoint of global step 0", shard
        for _ in range(restarts):
            found.journal.close()
            found = start(run, shard, "later")
        if not shard:
            orders = found.machine.orders
        for effect in found.machine.handle(orders, 1.0):
            if isinstance(effect, RecordCut):
                save(run, found, effect.record)
        found.journal.close()
    assert store.steps() == [0]
