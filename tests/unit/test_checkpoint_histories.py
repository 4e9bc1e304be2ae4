"""What an earlier history left in the bucket, after a run was deleted and applied again or a shard lost its volume."""

import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest

from atoll_runtime.checkpoint import GlobalStore, Part, Slice, StoreError, arrays
from atoll_runtime.checkpoint.deadline import late
from atoll_runtime.contract import CheckpointSpec
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.syncer.cuts import Cuts, Job


@pytest.fixture
def store(tmp_path):
    return GlobalStore(f"file://{tmp_path}/run")


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(arrays, "FIRST_WAIT", 0.0)


def make_part(step, value, lineage="new", run="b", shard=0, shards=1, final=False):
    values = np.full(4, value, np.float32)
    meta = {
        "run_uid": run,
        "lineage": lineage,
        "machine": {"cut": [step, step, final]},
    }
    return Part(step, shard, shards, {f"w{shard}": Slice(values, values)}, (step,), meta)


def held(store, step):
    """A value of each shard in a cut, and the lineages of the shards."""
    cut = store.load(step)
    return [cut.theta[name][0] for name in sorted(cut.theta)], cut.meta["lineages"]


@asynccontextmanager
async def serving(store, shards=1, missing=list):
    """Real `Cuts` of a shard, and an event that is set when they have told that a cut ended."""
    done = asyncio.Event()
    spec, meta = CheckpointSpec(uri=store.uri), {"run_uid": "b"}
    cuts = Cuts(spec, store, 0, shards, missing, meta, lambda *_: done.set())
    task = asyncio.create_task(cuts.serve())
    try:
        async with asyncio.timeout(50):
            yield cuts, done
    finally:
        task.cancel()


def ended(store, cut, part, **shards):
    """Saves a part. Returns the `Cuts`, after they told that the cut ended."""

    async def save():
        async with serving(store, **shards) as (cuts, done):
            cuts.submit(Job(cut, lambda: part))
            await done.wait()
        return cuts

    return asyncio.run(save())


@pytest.mark.parametrize("final", [False, True], ids=["in-the-middle", "final"])
def test_a_cut_stands_though_older_ones_may_not_be_removed(store, monkeypatch, caplog, final):
    """Removal fails by a retention policy, a missing right to delete, or too many requests."""
    monkeypatch.setattr("atoll_runtime.checkpoint.store.READING_SECONDS", 0.0)
    for step in (0, 1, 2, 3):
        store.save_part(make_part(step, 1.0))
        store.complete(step, 1, {"run_uid": "b"})

    def refused(path):
        raise StoreError(f"{path}: Forbidden")

    with monkeypatch.context() as locked:
        locked.setattr(store.bucket, "delete", refused)
        cuts = ended(store, CutId(20, 20, final), make_part(20, 3.0, final=final))
    assert (cuts.newest, cuts.error) == (20, "")
    assert held(store, 20) == ([3.0], ["new"])
    assert "older checkpoints were not removed, the next cut tries again: " in caplog.text
    ended(store, CutId(30, 30, final), make_part(30, 4.0, final=final))
    assert store.steps() == [30, 20, 3]


@pytest.mark.parametrize(("run", "whole"), [("a", False), ("a", True), ("b", False)])
def test_a_cut_of_another_history_is_replaced_not_taken_for_the_present_one(store, run, whole):
    store.save_part(make_part(20, 2.0, "old", run))
    if whole:
        store.complete(20, 1, {"run_uid": run})
    assert store.save_part(make_part(20, 3.0))
    assert not store.is_complete(20), "half of each must not stand as one"
    store.complete(20, 1, {"run_uid": "b"})
    assert held(store, 20) == ([3.0], ["new"])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"run": "a"}, "shard 1 is of run 'a', this cut of run 'b'"),
        ({"final": True}, r"the parts are of cuts \[20, 20, False\] and \[20, 20, True\]"),
    ],
)
def test_parts_of_two_runs_or_of_two_cuts_at_one_step_never_become_one(store, other, words):
    store.save_part(make_part(20, 3.0, shards=2))
    store.save_part(make_part(20, 2.0, shard=1, shards=2, **other))
    with pytest.raises(StoreError, match=f"step 20 is no consistent cut: .*{words}"):
        store.complete(20, 2, {"run_uid": "b"})
    store.save_part(make_part(20, 4.0, shard=1, shards=2))
    store.complete(20, 2, {"run_uid": "b"})
    assert held(store, 20) == ([3.0, 4.0], ["new", "new"])


def test_the_final_cut_takes_the_place_of_an_ordered_one_at_the_same_step(store):
    assert store.save_part(make_part(20, 3.0, shard=1, shards=2))
    for shard in (0, 1):
        assert store.save_part(make_part(20, 3.0, shard=shard, shards=2, final=True))
    store.complete(20, 2, {"run_uid": "b"})
    assert held(store, 20) == ([3.0, 3.0], ["new", "new"])


def test_shard_0_waits_for_the_parts_of_the_others_and_another_shard_for_nobody(store):
    ended(store, CutId(20, 20), make_part(20, 3.0, shard=1, shards=2), shards=2, missing=None)
    assert not store.is_complete(20)
    told = iter([[1], [1], []])
    ended(store, CutId(20, 20), make_part(20, 3.0, shard=0, shards=2), shards=2, missing=told.__next__)
    assert store.is_complete(20) and next(told, None) is None


@pytest.mark.parametrize("final", [False, True], ids=["in-the-middle", "final"])
@pytest.mark.parametrize("lineage", ["old", "new"], ids=["a-restored-volume", "a-volume-lost"])
def test_a_shard_that_fell_back_leaves_the_cut_that_was_completed_with_its_older_part(
    store, monkeypatch, lineage, final
):
    store.save_part(make_part(20, 2.0, "old", final=final))
    store.complete(20, 1, {"run_uid": "b"})
    with monkeypatch.context() as small:
        small.setattr(
            GlobalStore, "load", lambda *_: pytest.fail("a shard has memory for its own part alone")
        )
        cuts = ended(store, CutId(20, 20, final), make_part(20, 1.0, lineage, final=final))
    assert (cuts.newest, cuts.error) == (20, "")
    assert held(store, 20) == ([2.0], ["old"])


def test_the_same_part_is_not_written_twice(store):
    assert store.save_part(make_part(20, 3.0))
    written = store.bucket.read("global/20/shard-0-of-1.json")
    store.complete(20, 1, {"run_uid": "b"})
    assert store.save_part(make_part(20, 3.0))
    assert store.bucket.read("global/20/shard-0-of-1.json") == written
    assert store.is_complete(20)


def test_while_a_save_hangs_no_other_copies_the_arrays_and_the_next_one_is_whole(
    store, monkeypatch, eventually
):
    released, real, copied = threading.Event(), arrays._write, []

    def hang(uri, tree):
        released.wait(60)
        real(uri, tree)

    with monkeypatch.context() as away:
        away.setattr(arrays, "_write", hang)
        away.setattr(arrays, "TIMEOUT", 0.3)
        with pytest.raises(
            StoreError, match=r"global/20/state-0-of-1: cannot be written: no answer within 0.3 s"
        ):
            store.save_part(make_part(20, 2.0))

    def make():
        copied.append(len(late(arrays.CALLS)))
        return make_part(20, 3.0)

    async def save():
        async with serving(store) as (cuts, done):
            cuts.submit(Job(CutId(20, 20), make))
            while not cuts.error:
                await asyncio.sleep(0)
            told = cuts.error, list(copied)
            released.set()
            await done.wait()
        return told

    error, before = asyncio.run(save())
    assert (
        f"{store.uri}: an earlier call has not come back: {store.uri}/global/20/state-0-of-1, late" in error
    )
    assert before == []
    assert copied == [0]
    assert held(store, 20) == ([3.0], ["new"])
