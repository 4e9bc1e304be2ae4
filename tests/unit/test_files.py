"""Files that are whole or missing, also after a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll_runtime.checkpoint import Bucket

Done = tuple[str, str]
"""An operation, and its file or folder."""


@pytest.fixture(name="done")
def done_fixture(monkeypatch: pytest.MonkeyPatch) -> list[Done]:
    """Every sync, rename and new folder, in order."""
    done: list[Done] = []
    fsync, rename, mkdir = os.fsync, Path.replace, Path.mkdir

    def synced(handle: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name.partition(".")[0]))
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        done.append(("rename", target.name))
        return rename(self, target)

    def made(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        done.append(("make", self.name))
        mkdir(self, mode, parents, exist_ok)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(Path, "mkdir", made)
    return done


def test_an_object_is_durable_with_its_name_and_its_new_folders(tmp_path: Path, done: list[Done]) -> None:
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
