"""A bucket that does not answer is not a damaged checkpoint. A file is whole or missing, also after a loss of power."""

import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorstore

from atoll_runtime.checkpoint import Bucket, Cut, Damaged, GlobalStore, StoreError, arrays
from atoll_runtime.checkpoint.bucket import Folder
from atoll_runtime.checkpoint.deadline import late


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(arrays, "FIRST_WAIT", 0.0)


@pytest.fixture
def store(tmp_path):
    store = GlobalStore(f"file://{tmp_path}/run")
    for step in (10, 20):
        values = np.full((4, 8), step, np.float32)
        store.save(Cut(step, {"w": values, "x": values}, {"w": values, "x": values}, (step,)))
    return store


def test_an_object_that_comes_whole_instead_of_in_part_is_an_error(monkeypatch, tmp_path):
    bucket = Bucket(f"file://{tmp_path}")
    bucket.write("object", b"0123456789")
    real = Folder.read
    monkeypatch.setattr(Folder, "read", lambda self, path, start, stop, s: real(self, path, 0, None, s))
    with pytest.raises(StoreError, match="object: 10 bytes for the range from 4 to 6"):
        bucket.read("object", 4, 6)


def test_arrays_that_cannot_be_read_while_the_bucket_is_away_are_not_damaged(store, monkeypatch):
    def silent(bucket, path, *_):
        raise StoreError(f"{bucket.address(path)}: no answer within 60 s")

    def fail_and_fall_silent(*_, **__):
        monkeypatch.setattr(Bucket, "read", silent)
        raise ValueError("UNAVAILABLE: 503")

    with monkeypatch.context() as away:
        away.setattr("tensorstore.open", fail_and_fall_silent)
        with pytest.raises(StoreError, match="no answer within 60 s") as caught:
            store.newest()
    assert not isinstance(caught.value, Damaged)


def test_arrays_that_come_at_the_second_attempt_are_taken(store, monkeypatch):
    real, failed = tensorstore.open, []

    def fail_once(*given, **options):
        if not failed:
            failed.append(given)
            raise ValueError("UNAVAILABLE: 503")
        return real(*given, **options)

    monkeypatch.setattr("tensorstore.open", fail_once)
    cut, skipped = store.newest()
    assert failed
    assert (cut.step, skipped) == (20, [])


def test_a_read_that_hangs_is_an_error_and_the_next_one_waits_until_it_has_come_back(
    store, monkeypatch, eventually
):
    released = threading.Event()
    with monkeypatch.context() as away:
        away.setattr("tensorstore.open", lambda *_, **__: released.wait(60))
        away.setattr(arrays, "TIMEOUT", 0.2)
        earlier = rf"an earlier call has not come back: {store.uri}/global/20/state-0-of-1, late for \d+ s"
        expected = ["no answer within 0.2 s", earlier]
        for reason in expected:
            with pytest.raises(StoreError, match=f"state-0-of-1: cannot be read: {reason}") as caught:
                store.newest()
            assert not isinstance(caught.value, Damaged)
        assert arrays.stuck() == ""
        away.setattr(arrays, "STUCK", 0.0)
        assert re.fullmatch(earlier, arrays.stuck())
        released.set()
        eventually(lambda: not late(arrays.CALLS))
        assert arrays.stuck() == ""
    assert store.newest()[0].step == 20


def test_a_large_part_is_read_in_pieces_each_with_its_own_time(store, monkeypatch):
    real, read = arrays._in_time, []
    monkeypatch.setattr(arrays, "PIECE", 4 * 8 * 4)
    monkeypatch.setattr(arrays, "_in_time", lambda *given: read.append(given[0]) or real(*given))
    cut = store.load(20)
    assert len(read) == 4
    np.testing.assert_array_equal(cut.theta["x"], np.full((4, 8), 20, np.float32))


def test_a_write_that_ends_in_the_middle_leaves_what_stood_there(tmp_path, monkeypatch):
    bucket = Bucket(f"file://{tmp_path}/b")
    bucket.write("x", b"before")

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=rf"file://{tmp_path}/b/x: .*No space left"):
            bucket.write("x", b"after")
        with pytest.raises(StoreError, match="No space left"):
            bucket.write("y", b"after")
    assert bucket.read("x") == b"before"
    assert os.listdir(tmp_path / "b") == ["x"]


def test_what_a_killed_writer_left_is_no_object_and_goes_with_its_folder(tmp_path):
    bucket = Bucket(f"file://{tmp_path}/b")
    bucket.write("f/x", b"1")
    (tmp_path / "b/f/.y.0123.partial").write_bytes(b"half")
    assert bucket.list() == ["f/x"]
    bucket.delete_tree("f")
    assert not (tmp_path / "b/f").exists()


@pytest.fixture
def done(monkeypatch):
    """Every sync, rename and new folder, in order: the operation, and its file or folder."""
    done, fsync, rename, mkdir = [], os.fsync, Path.replace, Path.mkdir

    def synced(handle):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name.partition(".")[0]))
        fsync(handle)

    def renamed(self, target):
        done.append(("rename", target.name))
        return rename(self, target)

    def made(self, *how, **more):
        done.append(("make", self.name))
        mkdir(self, *how, **more)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(Path, "mkdir", made)
    return done


def test_an_object_is_durable_with_its_name_and_its_new_folders(tmp_path, done):
    bucket = Bucket(f"file://{tmp_path}/run")
    (tmp_path / "run").mkdir(exist_ok=True)
    done.clear()
    bucket.write("global/7/manifest", b"whole")
    folders = [("make", "global"), ("sync", "run"), ("make", "7"), ("sync", "global")]
    written = [("sync", ""), ("rename", "manifest"), ("sync", "7")]
    assert done == folders + written
    done.clear()
    bucket.write("global/7/manifest", b"again")
    assert done == written
    assert bucket.read("global/7/manifest") == b"again"
