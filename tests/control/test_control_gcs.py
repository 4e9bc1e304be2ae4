"""Checkpoints and data in a real bucket server, reached by gs://, and what is said when it fails."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from atoll_local.bucket import FakeGcs
from atoll_runtime.checkpoint import Bucket, Cut, GlobalStore, StoreError
from atoll_runtime.data import DataError, Reader

BUCKET = "atoll"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path_factory.mktemp("gcs"), port=0) as bucket, pytest.MonkeyPatch.context() as patch:
        bucket.create_bucket(BUCKET)
        for name, value in bucket.environment().items():
            patch.setenv(name, value)
        yield bucket


@pytest.fixture
def store(server: FakeGcs, request: pytest.FixtureRequest) -> GlobalStore:
    return GlobalStore(f"gs://{BUCKET}/{request.node.name}")


def cut(step: int) -> Cut:
    values = np.random.default_rng(step).standard_normal((64, 32)).astype(np.float32)
    return Cut(step, {"w": values}, {"w": values * 2}, (step,), {"fingerprint": "f"})


def objects(server: FakeGcs, folder: str) -> list[Path]:
    return sorted(path for path in (server.folder / "objects" / BUCKET / folder).rglob("*") if path.is_file())


def overwrite(server: FakeGcs, name: str, content: bytes) -> None:
    url = f"{server.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
    urllib.request.urlopen(urllib.request.Request(url, content), timeout=10).close()


def test_the_newest_sound_cut_comes_back_bit_for_bit_and_pruning_leaves_no_object(
    store: GlobalStore, server: FakeGcs
) -> None:
    root = store.uri.removeprefix(f"gs://{BUCKET}/")
    for step in (1, 10, 20, 30):
        store.save(cut(step))
    assert store.steps() == [30, 20, 10, 1]
    store.bucket.delete("global/30/manifest.json")
    arrays = [path for path in objects(server, f"{root}/global/20/state-0-of-1") if path.parent.name == "d"]
    for array in arrays:
        name = str(array.relative_to(server.folder / "objects" / BUCKET))
        overwrite(server, name, b"\0" * array.stat().st_size)
    found, skipped = store.newest()
    assert [(each.step, each.complete) for each in skipped] == [(30, False), (20, True)]
    assert found is not None and found.step == 10
    np.testing.assert_array_equal(found.theta["w"], cut(10).theta["w"])
    np.testing.assert_array_equal(found.momentum["w"], cut(10).momentum["w"])
    store.prune(2, 30, math.inf)
    assert store.steps() == [20, 10]
    assert not objects(server, f"{root}/global/1")


def test_a_bucket_that_does_not_exist_or_is_away_is_named(server: FakeGcs) -> None:
    with pytest.raises(StoreError, match=r"gs://atoll-absent/run/global/1: NotFound"):
        GlobalStore("gs://atoll-absent/run").save(cut(1))
    with pytest.raises(DataError, match=r"gs://atoll/data/absent"):
        Reader(f"gs://{BUCKET}/data/absent", "train", 64)
    bucket = Bucket(f"gs://{BUCKET}/away")
    bucket.write("x", b"1")
    server.stop()
    try:
        with pytest.raises(StoreError, match=r"gs://atoll/away"):
            Bucket(bucket.uri, timeout=2.0).list()
    finally:
        server.start()
    assert bucket.list() == ["x"]


def test_a_range_beyond_an_object_is_read_as_far_as_the_object_goes(server: FakeGcs) -> None:
    bucket = Bucket(f"gs://{BUCKET}/short")
    bucket.write("x", b"123")
    bucket.write("empty", b"")
    found = [
        bucket.read("x", 1, 9),
        bucket.read("x", 3, 9),
        bucket.read("x", 8, 9),
        bucket.read("empty", 0, 9),
    ]
    assert found == [b"23", b"", b"", b""]


@pytest.mark.long
def test_an_object_of_many_pieces_comes_back_bit_for_bit(server: FakeGcs) -> None:
    bucket = Bucket(f"gs://{BUCKET}/large")
    data = np.random.default_rng(0).bytes(120 << 20)  # three of the client's pieces
    bucket.write("x", data)
    assert bucket.read("x", 0, len(data)) == data
