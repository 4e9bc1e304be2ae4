"""The local bucket server: what a client and a test of outages rest on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_local.bucket import FakeGcs
from atoll_local.errors import ClusterError

pytestmark = [
    pytest.mark.control,
    # The program may have to be built first.
    pytest.mark.timeout(600),
]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path / "bucket", port=0) as server:
        yield server


def upload(server: FakeGcs, name: str, content: bytes) -> None:
    url = f"{server.url}/upload/storage/v1/b/runs/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(url, content), timeout=10).close()


def read(server: FakeGcs, name: str, start: int, end: int) -> bytes:
    url = f"{server.url}/storage/v1/b/runs/o/{name.replace('/', '%2F')}?alt=media"
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{end - 1}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def test_objects_outlive_an_outage_at_the_same_address(bucket: FakeGcs) -> None:
    bucket.create_bucket("runs")
    upload(bucket, "run/global/8/manifest", b"0123456789")
    url = bucket.url
    bucket.stop()
    with pytest.raises(urllib.error.URLError):
        read(bucket, "run/global/8/manifest", 0, 4)
    bucket.start()
    assert bucket.url == url
    assert read(bucket, "run/global/8/manifest", 2, 5) == b"234"


def test_a_bucket_that_exists_is_left_as_it_is(bucket: FakeGcs) -> None:
    bucket.create_bucket("runs")
    upload(bucket, "a", b"x")
    bucket.create_bucket("runs")
    with urllib.request.urlopen(f"{bucket.url}/storage/v1/b/runs/o", timeout=10) as answer:
        assert [item["name"] for item in json.load(answer)["items"]] == ["a"]


def test_a_refused_bucket_name_says_what_the_server_said(bucket: FakeGcs) -> None:
    with pytest.raises(ClusterError, match=r"'b'.*400"):
        bucket.create_bucket("b")


def test_a_server_that_is_down_is_named_by_its_address(tmp_path: Path) -> None:
    server = FakeGcs(tmp_path, port=0)
    with pytest.raises(ClusterError, match=f"{server.url} does not answer"):
        server.create_bucket("runs")


def test_a_taken_port_is_an_error_at_once(bucket: FakeGcs, tmp_path: Path) -> None:
    other = FakeGcs(tmp_path / "other", port=bucket.port)
    with pytest.raises(ClusterError, match=f"cannot listen on {bucket.address}:{bucket.port}"):
        other.start()


def test_another_process_can_stop_the_server(bucket: FakeGcs) -> None:
    FakeGcs(bucket.folder, port=bucket.port).stop()
    with pytest.raises(ClusterError, match="does not answer"):
        bucket.create_bucket("runs")
