"""The search order for programs, and what is refused on the way."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atoll_local import programs
from atoll_local.catalogue import PROGRAMS, Download
from atoll_local.errors import HostError


@pytest.fixture(autouse=True)
def clean_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No cache, no PATH, no download, no Go."""
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("ATOLL_NO_DOWNLOAD", "1")
    monkeypatch.setattr("atoll_local.gobuild.go_program", lambda: None)
    for name in PROGRAMS:
        monkeypatch.delenv("ATOLL_" + name.upper().replace("-", "_"), raising=False)
    return tmp_path


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def cached(tmp_path: Path, name: str, content: bytes = b"#!/bin/sh\n") -> Path:
    target = tmp_path / "cache" / "bin" / f"{name}-{PROGRAMS[name].version}"
    target.parent.mkdir(parents=True)
    target.write_bytes(content)
    target.with_name(target.name + ".sha256").write_text(hashlib.sha256(content).hexdigest())
    return target


def test_path_given_by_the_user_is_used_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = executable(tmp_path / "mine", "anything")
    executable(tmp_path / "path" / "etcd", "etcd Version: 3.6.8")
    monkeypatch.setenv("ATOLL_ETCD", str(given))
    assert programs.find("etcd") == given


def test_a_given_path_that_is_no_executable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_ETCD", "/nowhere/etcd")
    with pytest.raises(HostError, match="ATOLL_ETCD='/nowhere/etcd' is not an executable"):
        programs.find("etcd")


@pytest.mark.parametrize(
    ("says", "accepted"),
    [
        pytest.param("etcd Version: 3.6.8", True, id="the-same"),
        pytest.param("etcd Version: 3.9.0", True, id="newer-minor"),
        pytest.param("etcd Version: 3.5.21", False, id="older-minor"),
        pytest.param("etcd Version: 4.0.0", False, id="another-major"),
        pytest.param("no version at all", False, id="silent"),
    ],
)
def test_a_program_on_path_counts_when_its_version_fits(tmp_path: Path, says: str, accepted: bool) -> None:
    on_path = executable(tmp_path / "path" / "etcd", says)
    stored = cached(tmp_path, "etcd")
    assert programs.find("etcd") == (on_path if accepted else stored)


def test_a_cached_file_that_changed_is_not_used(tmp_path: Path) -> None:
    cached(tmp_path, "etcd").write_bytes(b"torn")
    with pytest.raises(HostError, match="Go is not installed"):
        programs.find("etcd")


@pytest.mark.parametrize("version", ["v1.30.4", "v1.36.3", "v2.0.0"])
def test_installed_program_on_path_may_have_any_version(tmp_path: Path, version: str) -> None:
    cached(tmp_path, "kubectl")
    on_path = executable(tmp_path / "path" / "kubectl", f"Client Version: {version}")
    assert programs.installed("kubectl") == on_path


def test_installed_programs_are_neither_downloaded_nor_built(
    mirror: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, content = mirror
    content["/kubectl"] = b"program"
    content["/sum"] = hashlib.sha256(b"program").hexdigest().encode()
    there = Download(url=f"{url}/kubectl", checksum_url=f"{url}/sum")
    monkeypatch.setitem(PROGRAMS, "kubectl", replace(PROGRAMS["kubectl"], download=there))
    with pytest.raises(HostError, match="kubectl is not on PATH: install it, or name it with ATOLL_KUBECTL="):
        programs.installed("kubectl")
    assert not (tmp_path / "cache").exists()


def test_installed_falls_back_to_the_pinned_program(tmp_path: Path) -> None:
    stored = cached(tmp_path, "kubectl")
    assert programs.installed("kubectl") == stored


def test_given_path_of_an_installed_program_must_be_executable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "path" / "helm", "v3.14.0")
    given = executable(tmp_path / "mine", "anything")
    monkeypatch.setenv("ATOLL_HELM", str(given))
    assert programs.installed("helm") == given
    monkeypatch.setenv("ATOLL_HELM", "/nowhere/helm")
    with pytest.raises(HostError, match="ATOLL_HELM='/nowhere/helm' is not an executable"):
        programs.installed("helm")


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HostError, match=r"unknown program 'etcdd'.*kubelet"):
        programs.find("etcdd")


CUT_OFF = ".cut-off"
"""Ends the path of what is never sent whole."""


class _Files(http.server.BaseHTTPRequestHandler):
    content: dict[str, bytes]

    def do_GET(self) -> None:
        body = self.content.get(self.path)
        self.send_response(200 if body is not None else 404)
        if self.path.endswith(CUT_OFF):
            self.send_header("Content-Length", str(len(body or b"") + 1))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, bytes]]]:
    monkeypatch.delenv("ATOLL_NO_DOWNLOAD")
    monkeypatch.setattr(programs, "_unreachable", set())
    content: dict[str, bytes] = {}
    handler = type("Handler", (_Files,), {"content": content})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", content
    server.shutdown()
    server.server_close()
    thread.join(5)


def offer(monkeypatch: pytest.MonkeyPatch, download: Download) -> None:
    monkeypatch.setitem(PROGRAMS, "etcd", replace(PROGRAMS["etcd"], download=download))


def archive(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_an_official_archive_is_unpacked_when_its_checksum_holds(
    mirror: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, content = mirror
    packed = archive("etcd-v3/etcd", b"program")
    content["/etcd.tgz"] = packed
    content["/SUMS"] = f"{'0' * 64}  other\n{hashlib.sha256(packed).hexdigest()}  etcd.tgz\n".encode()
    offer(monkeypatch, Download(url=f"{url}/etcd.tgz", checksum_url=f"{url}/SUMS", member="etcd"))
    found = programs.find("etcd")
    assert found.read_bytes() == b"program"
    assert os.access(found, os.X_OK)


def test_a_download_with_another_checksum_is_refused(
    mirror: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, content = mirror
    content["/etcd"] = b"not what was published"
    content["/etcd.sha256"] = b"0" * 64
    offer(monkeypatch, Download(url=f"{url}/etcd", checksum_url=f"{url}/etcd.sha256"))
    with pytest.raises(HostError, match="does not have the checksum"):
        programs.find("etcd")
    assert not (tmp_path / "cache" / "bin" / f"etcd-{PROGRAMS['etcd'].version}").exists()


def test_interrupted_download_leads_to_a_build(
    mirror: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, content = mirror
    path = f"/etcd{CUT_OFF}"
    content[path], content["/etcd.sha256"] = b"prog", hashlib.sha256(b"program").hexdigest().encode()
    offer(monkeypatch, Download(url=url + path, checksum_url=f"{url}/etcd.sha256"))
    monkeypatch.setattr(programs, "build", lambda program, folder, target: target.write_bytes(b"built"))
    assert programs.find("etcd").read_bytes() == b"built"


def test_message_names_both_missing_go_and_missing_network(
    mirror: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = mirror
    offer(monkeypatch, Download(url=f"{url}/absent", checksum_url=f"{url}/absent.sha256"))
    with pytest.raises(HostError, match="neither on PATH nor downloadable, and Go is not installed"):
        programs.find("etcd")
