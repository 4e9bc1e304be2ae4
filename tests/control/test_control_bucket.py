"""The local bucket server: what a client and a test of outages rest on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_bench.command import main as bench
from atoll_local.bucket import FakeGcs
from atoll_local.errors import HostError


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path / "bucket", port=0) as server:
        yield server


def names(server: FakeGcs) -> list[str]:
    with urllib.request.urlopen(f"{server.url}/storage/v1/b/runs/o", timeout=10) as answer:
        return [item["name"] for item in json.load(answer)["items"]]


def test_objects_outlive_an_outage_at_the_same_address_and_a_second_creation(bucket: FakeGcs) -> None:
    bucket.create_bucket("runs")
    url = f"{bucket.url}/upload/storage/v1/b/runs/o?uploadType=media&name=run/global/8/manifest"
    urllib.request.urlopen(urllib.request.Request(url, b"0123456789"), timeout=10).close()
    FakeGcs(bucket.folder, port=bucket.port).stop()  # as another process stops it
    with pytest.raises(urllib.error.URLError):
        names(bucket)
    bucket.start()
    bucket.create_bucket("runs")
    assert names(bucket) == ["run/global/8/manifest"]
    read = f"{bucket.url}/storage/v1/b/runs/o/run%2Fglobal%2F8%2Fmanifest?alt=media"
    request = urllib.request.Request(read, headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"234"


def test_a_taken_port_is_named_with_the_address(bucket: FakeGcs, tmp_path: Path) -> None:
    with pytest.raises(
        HostError, match=f"port {bucket.port}, which the bucket at {bucket.address} needs, is taken"
    ):
        FakeGcs(tmp_path / "other", port=bucket.port).start()


def test_a_shard_that_starts_and_a_seeded_host_read_their_part_from_the_bucket_and_little_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Few parameters: manifests and the reader's own files count for more than with many."""
    bench(["restore", "--json", "--parameters", "10M", "--repeat", "1"])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [list(line) for line in lines] == [["what", "bytes_ratio", "seconds_ratio"]] * 2
    shard, host = lines
    assert (shard["what"], host["what"]) == ("shard", "host")
    assert 0.5 < shard["bytes_ratio"] <= 1.05 and 0.5 < host["bytes_ratio"] <= 1.05
    assert min(shard["seconds_ratio"], host["seconds_ratio"]) > 0
