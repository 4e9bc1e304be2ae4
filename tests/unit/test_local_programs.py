"""The search order for programs, and what the search refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from commands import executable

from atoll_local import programs
from atoll_local.catalogue import PROGRAMS
from atoll_local.errors import HostError
from atoll_local.gobuild import build


@pytest.fixture(autouse=True)
def clean_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No cache, no PATH, no Go."""
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("atoll_local.gobuild.go_program", lambda: None)
    for name in PROGRAMS:
        monkeypatch.delenv("ATOLL_" + name.upper().replace("-", "_"), raising=False)
    return tmp_path


def cached(tmp_path: Path, name: str) -> Path:
    return executable(tmp_path / "cache" / "bin" / f"{name}-{PROGRAMS[name].version}", "true")


def test_path_given_by_the_user_is_used_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = executable(tmp_path / "mine", "true")
    cached(tmp_path, "etcd")
    monkeypatch.setenv("ATOLL_ETCD", str(given))
    assert programs.find("etcd") == given


def test_a_given_path_that_is_no_executable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_ETCD", "/nowhere/etcd")
    with pytest.raises(HostError, match="ATOLL_ETCD='/nowhere/etcd' is not an executable"):
        programs.find("etcd")


def test_without_go_a_program_is_not_built() -> None:
    with pytest.raises(HostError, match="is not there, and Go is not installed"):
        programs.find("etcd")


def test_an_installed_program_may_have_any_version_and_the_cached_one_takes_its_place(tmp_path: Path) -> None:
    stored = cached(tmp_path, "kubectl")
    assert programs.installed("kubectl") == stored
    on_path = executable(tmp_path / "path" / "kubectl", "true")
    assert programs.installed("kubectl") == on_path


def test_installed_programs_are_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "build", lambda *_: pytest.fail("it is built"))
    with pytest.raises(HostError, match="kubectl is not on PATH: install it, or name it with ATOLL_KUBECTL="):
        programs.installed("kubectl")
    assert not (tmp_path / "cache").exists()


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HostError, match=r"unknown program 'etcdd'.*kubelet"):
        programs.find("etcdd")


def test_a_program_is_built_once_from_its_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "build", lambda program, folder, target: target.write_bytes(b"built"))
    found = programs.find("etcd")
    assert found.read_bytes() == b"built" and os.access(found, os.X_OK)
    monkeypatch.setattr(programs, "build", lambda *_: pytest.fail("it is built again"))
    assert programs.find("etcd") == found


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Go tool that cannot download while there is a file `offline`, and builds nothing."""
    (tmp_path / "go.mod").write_text("require (\n\tk8s.io/api v0.0.0\n)\n")
    told = f'[ ! -e {tmp_path}/offline ] && echo \'{{"Dir": "{tmp_path}"}}\''
    program = executable(tmp_path / "go", f"[ $1 != mod ] || {{ {told}; }}")
    monkeypatch.setattr("atoll_local.gobuild.go_program", lambda: str(program))
    return tmp_path


def test_what_kubernetes_requires_is_written_after_a_download_that_failed_and_for_another_version(
    go: Path,
) -> None:
    program, work = PROGRAMS["kubelet"], go / "work"
    (go / "offline").touch()
    with pytest.raises(HostError, match="go mod download"):
        build(program, work, go / "kubelet")
    (go / "offline").unlink()
    for version in (program.version, "1.36.4", "1.36.4"):
        build(replace(program, version=version), work, go / "kubelet")
        module = (work / "go.mod").read_text()
        assert f"require k8s.io/kubernetes v{version}\n" in module
        assert f"replace (\n\tk8s.io/api => k8s.io/api v0{version.removeprefix('1')}\n)" in module
