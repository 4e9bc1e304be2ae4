"""Global checkpoints: completing, finding, falling back, pruning."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from atoll_runtime.checkpoint import Bucket, Cut, GlobalStore, Part, Slice, StoreError, arrays, parts
from atoll_runtime.checkpoint.store import MOST_KEPT, READING_SECONDS
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.syncer.recovery import owned, slices
from atoll_runtime.syncer.state import State


def make_cut(step, **meta):
    random = np.random.default_rng(step)
    shapes = {"embedding/table": (8, 4), "layers/mlp/up": (2, 4, 6), "final/norm": (4,)}
    return Cut(
        step=step,
        theta={name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()},
        momentum={name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()},
        versions=(step, step - 1, step - 2),
        meta={"model": {"preset": "1m"}, "fingerprint": "f", **meta},
    )


def assert_same(found, wanted):
    assert (found.step, found.versions) == (wanted.step, wanted.versions)
    assert found.meta.items() >= wanted.meta.items()
    for name in wanted.theta:
        np.testing.assert_array_equal(found.theta[name], wanted.theta[name])
        np.testing.assert_array_equal(found.momentum[name], wanted.momentum[name])


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "FIRST_WAIT", 0.0)
    return GlobalStore(f"file://{tmp_path}/run")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "global"


def flip(folder: Path):
    # Damages each file, because retries of OCDBT leave files that no read needs.
    for path in (folder / "20").rglob("d/*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def truncate(folder: Path):
    for path in (folder / "20").rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def wrong_checksum(folder: Path):
    path = folder / "20" / "shard-0-of-1.json"
    content = json.loads(path.read_text())
    content["tensors"]["final/norm"]["theta"][0] ^= 1
    path.write_text(json.dumps(content))


def lost_state(folder: Path):
    (folder / "20" / "state-0-of-1").rename(folder / "elsewhere")


DAMAGES = {
    "flipped-bit": (flip, ""),
    "truncated-file": (truncate, "cannot be read"),
    "wrong-checksum": (wrong_checksum, "theta final/norm: checksum"),
    "arrays-gone": (lost_state, "cannot be read"),
    "half": (lambda at: (at / "20/manifest.json").unlink(), "half-written: it has no manifest"),
    "manifest": (lambda at: (at / "20/manifest.json").write_text("{"), "manifest.json: Invalid JSON"),
    "fields": (lambda at: (at / "20/manifest.json").write_text("{}"), "manifest.json: step"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over_and_said_why(store, folder, damage, reason):
    store.save(make_cut(10))
    store.save(make_cut(20))
    damage(folder)
    cut, skipped = store.newest()
    assert_same(cut, make_cut(10))
    assert [one.step for one in skipped] == [20]
    assert reason in skipped[0].reason
    assert str(skipped[0]).startswith("step 20 skipped: ")


def test_a_save_over_a_half_written_or_damaged_step_is_whole(store, folder):
    store.save(make_cut(20))
    truncate(folder)
    store.save(make_cut(20))
    assert_same(store.newest()[0], make_cut(20))
    (folder / "20" / "manifest.json").unlink()
    store.save(make_cut(20))
    assert_same(store.newest()[0], make_cut(20))


@pytest.fixture
def read(monkeypatch):
    """Bytes read of each array."""
    sizes, real = [], arrays.read

    def counted(*given):
        for values in real(*given):
            sizes.append(values.nbytes)
            yield values

    monkeypatch.setattr(arrays, "read", counted)
    return sizes


EMBEDDINGS = {"embedding/table": (2048, 64), "head/table": (64, 2048), "layers/up": (3, 64, 64)}
BANDS = [pytest.param(2_000_000, id="whole-layers"), pytest.param(0, id="bands-of-layers")]
"""Elements that a layer may have without being cut."""


@pytest.fixture(params=BANDS)
def bands(request, monkeypatch):
    """With and without layers that are cut into bands."""
    monkeypatch.setattr("atoll_runtime.protocol.fragments.LEAST_LAYER", request.param)


def save_embeddings(store, shards):
    """Saves embeddings that are cut along the vocabulary, and layers. Of three shards, one has the layers 0 and 2 and
    another the layer 1. Returns what was saved."""
    tensors = [
        TensorInfo(name, shape, stacked="layers" in name, embedding="table" in name)
        for name, shape in EMBEDDINGS.items()
    ]
    layout, random = build_layout(tensors, 2, shards), np.random.default_rng(0)
    theta, momentum = (
        {name: random.standard_normal(shape, np.float32) for name, shape in EMBEDDINGS.items()}
        for _ in range(2)
    )
    for s in reversed(range(shards)):
        with pytest.raises(StoreError, match=rf"shard-0-of-{shards}.json: not found"):
            store.complete(20, shards, {})
        own = layout.shard(s)
        state = State.from_tensors(own, "float32", theta, momentum, [20, 19 - s], "")
        meta = {"machine": {"shard": s}}
        store.save_part(Part(20, s, shards, slices(own, state.fragments), state.versions, meta))
        assert store.newest()[0] is None
    store.complete(20, shards, {"run": "walk"})
    return layout, theta, momentum


@pytest.mark.usefixtures("bands")
@pytest.mark.parametrize("shards", [1, 3])
def test_embeddings_that_shards_own_bands_of_come_back_whole_and_to_shards_in_any_number(store, read, shards):
    layout, theta, momentum = save_embeddings(store, shards)
    assert store.is_complete(20)
    found = store.load(20)
    assert found.shards == shards and found.versions == sum(((20, 19 - s) for s in range(shards)), ())
    machines = [{"shard": s} for s in range(shards)]
    assert found.meta["run"] == "walk" and found.meta["machines"] == machines
    whole = json.loads(store.bucket.read("global/20/manifest.json"))
    assert whole["meta"] == {"run": "walk"}, "records are in the parts alone, so each is read once"
    for name in EMBEDDINGS:
        np.testing.assert_array_equal(found.theta[name], theta[name])
        np.testing.assert_array_equal(found.momentum[name], momentum[name])
    assert len(layout.split(5).shard(0).fragments[0].pieces) > 1
    for s in range(5):
        own, before = layout.split(5).shard(s), sum(read)
        cut, _ = store.newest(own=owned(own))
        assert sum(read) - before == 2 * 4 * own.size
        for p in range(2):
            np.testing.assert_array_equal(own.flatten(cut.theta, p), own.flatten(theta, p))
            np.testing.assert_array_equal(own.flatten(cut.momentum, p), own.flatten(momentum, p))


@pytest.mark.usefixtures("bands")
@pytest.mark.parametrize("axes", [(1, 0), (0, 1)], ids=["width", "vocabulary"])
def test_a_host_reads_its_share_of_embeddings_that_shards_own_bands_of(store, read, monkeypatch, axes):
    monkeypatch.setattr(parts, "LEAST_BLOCK", 0)
    split = dict(zip(EMBEDDINGS, (*axes, 1), strict=True))
    _, theta, _ = save_embeddings(GlobalStore(store.uri, split), 3)
    for host in range(4):
        own = {
            name: (*map(range, shape[:axis]), range(shape[axis] * host // 4, shape[axis] * (host + 1) // 4))
            for (name, shape), axis in zip(EMBEDDINGS.items(), split.values(), strict=True)
        }
        before = sum(read)
        cut = store.load(20, momentum=False, own=own)
        assert sum(read) - before == sum(4 * math.prod(shape) // 4 for shape in EMBEDDINGS.values())
        assert cut.momentum == {}
        for name, region in own.items():
            at = np.ix_(*region, *map(range, EMBEDDINGS[name][len(region) :]))
            np.testing.assert_array_equal(cut.theta[name][at], theta[name][at])


@pytest.mark.parametrize(
    ("width", "hosts"),
    [(512, 64), (512, 128), (768, 48), (768, 64), (640, 64), (640, 80), (448, 28), (768, 192)],
)
def test_hosts_whose_number_divides_a_layer_read_their_own_blocks(store, read, monkeypatch, width, hosts):
    monkeypatch.setattr(parts, "LEAST_BLOCK", width)
    values = {"layers/up": np.arange(width * 128, dtype=np.float32).reshape(1, width, 128)}
    GlobalStore(store.uri, {"layers/up": 1}).save(Cut(20, values, values, (20,)))
    share = width // hosts
    for host in (0, hosts // 2 + 1, hosts - 1):
        own, before = range(host * share, (host + 1) * share), sum(read)
        cut = store.load(20, momentum=False, own={"layers/up": (range(1), own)})
        assert sum(read) - before == 4 * 128 * share
        found = cut.theta["layers/up"][0, own.start : own.stop]
        np.testing.assert_array_equal(found, values["layers/up"][0, own.start : own.stop])


def test_damage_outside_its_part_is_none_of_a_hosts_business_and_inside_it_is(store, folder):
    store, values = (
        GlobalStore(store.uri, {"layers/up": 2}),
        {"layers/up": np.ones((1, 64, 4096), np.float32)},
    )
    store.save(Cut(20, values, values, (20,)))
    path = folder / "20" / "shard-0-of-1.json"
    content = json.loads(path.read_text())
    content["tensors"]["layers/up"]["theta"][-1] ^= 1
    path.write_text(json.dumps(content))
    found = [
        store.newest(own={"layers/up": (range(1), range(64), range(*span))})
        for span in ((0, 9), (4090, 4096))
    ]
    assert found[0][0].step == 20 and found[1][0] is None
    assert "theta layers/up: checksum" in found[1][1][0].reason


def test_a_cut_that_lacks_a_layer_is_refused(store):
    rows = np.zeros((2, 4), np.float32)
    store.save_part(Part(20, 0, 1, {"layers/up": Slice(rows, rows, (0, 2))}, (20,), {}))
    store.complete(20, 1, {})
    with pytest.raises(StoreError, match=r"layers/up: layers or bands \[0, 2\] are not all"):
        store.load(20)


def test_pruning_keeps_the_newest_and_removes_old_leftovers_but_no_save_under_way(store, folder):
    for step in (10, 20, 30, 40, 50):
        store.save(make_cut(step))
    (folder / "20" / "manifest.json").unlink()
    (folder / "50" / "manifest.json").unlink()
    store.prune(2, 40, math.inf)
    assert store.steps() == [40, 30]
    assert sorted(path.name for path in folder.iterdir() if any(path.rglob("*"))) == ["30", "40", "50"]


def test_newer_checkpoints_that_cannot_be_read_take_no_place_of_the_one_just_completed(store, folder):
    for step in (100, 200, 300, 400):
        store.save(make_cut(step))
    for step in (200, 300, 400):
        (folder / str(step) / "state-0-of-1").rename(folder / f"elsewhere-{step}")
    for step in (150, 160, 170):  # the run continued from 100
        store.save(make_cut(step))
        store.prune(2, step, math.inf)
    found, skipped = store.newest()
    assert (found.step, [each.step for each in skipped]) == (170, [400, 300, 200])
    assert store.steps() == [400, 300, 200, 170, 160]


def saved_at(store, folder, step, seconds):
    """Saves a cut with a manifest that gives this time of completion."""
    store.save(make_cut(step))
    path = folder / str(step) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "time": seconds}))


def test_a_checkpoint_that_was_the_newest_until_just_now_stays_for_who_reads_it(store, folder):
    for step in (10, 20, 30, 40, 50):
        saved_at(store, folder, step, float(step))
    now = 30.0 + READING_SECONDS  # 20 was the newest until 30
    store.prune(2, 50, now - 1)
    assert store.steps() == [50, 40, 30, 20]
    store.prune(2, 50, now)
    assert store.steps() == [50, 40, 30]
    store.prune(2, 50, now + 20)
    assert store.steps() == [50, 40]


def test_checkpoints_that_follow_each_other_fast_do_not_fill_the_bucket(store, folder):
    for step in range(1, 12):
        saved_at(store, folder, step, 100.0)
        store.prune(2, step, 100.0)
    assert store.steps() == list(range(11, 11 - 2 * MOST_KEPT, -1))


def test_objects_are_listed_read_in_ranges_and_deleted(tmp_path):
    with pytest.raises(StoreError, match="s3://bucket"):
        Bucket("s3://bucket")
    bucket = Bucket(f"file://{tmp_path}/b/")
    bucket.write("x/y", b"0123456789")
    bucket.write("z", b"")
    assert bucket.list() == ["x/y", "z"]
    assert bucket.list("x") == ["x/y"]
    assert bucket.read("x/y", 2, 5) == b"234"
    bucket.delete("x/y")
    bucket.delete("x/y")
    bucket.delete_tree("nothing")
    assert bucket.list() == ["z"]
