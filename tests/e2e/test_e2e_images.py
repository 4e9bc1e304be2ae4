"""The images of operator and runtime: built twice from the lock files, each time from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll_local.images import build_images
from atoll_local.programs import find

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]


def test_two_builds_have_the_same_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_COREDNS", str(find("coredns")))
    digests = []
    for cache in (tmp_path / "one", tmp_path / "two"):
        monkeypatch.setenv("ATOLL_CACHE", str(cache))
        build_images()
        blobs = (cache / "images" / "containerd" / "store").rglob("blobs/sha256/*")
        digests.append({blob.name for blob in blobs})
    assert digests[0] == digests[1] and len(digests[0]) > 12, "manifests, configurations and layers"
