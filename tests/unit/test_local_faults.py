"""Faults affect only the processes of the named pods."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll_local import cgroups, faults
from atoll_local.cluster import Cluster
from atoll_local.errors import ClusterError
from atoll_local.machine import SANDBOX
from atoll_local.process import wait_for

Add = Callable[..., tuple[int, int]]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Adds a pod: its sandbox and one program. They are real processes, listed in files as cgroup v1 does. Returns both
    pids."""
    started = list[subprocess.Popen[bytes]]()
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")

    def pod(node: str, uid: str, quality: str = "besteffort") -> tuple[int, int]:
        pair = [subprocess.Popen([name, "60"], executable="/usr/bin/sleep") for name in (SANDBOX, "program")]
        started.extend(pair)
        for name, process in zip(("sandbox", "program"), pair, strict=True):
            folder = tmp_path / f"cgroup/memory/atoll-t/{node}/kubepods/{quality}/pod{uid}/{name}"
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(f"{process.pid}\n")
        return pair[0].pid, pair[1].pid

    yield pod
    for process in started:
        process.kill()
        process.wait(20)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("ATOLL_STATE", str(tmp_path / "state"))
    return Cluster("t")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_killed_pods_lose_their_programs_at_once_and_keep_their_sandboxes(add: Add, cluster: Cluster) -> None:
    first = add("v6e-2x4-0", "a")
    second = add("v6e-2x4-1", "b", "burstable")
    other = add("v6e-2x2-0", "c")
    assert faults.kill_pods(cluster, ["a", "b"]) == 2
    wait_for("the end of both", lambda: state(first[1]) == state(second[1]) == "Z", 20)
    spared = (first[0], second[0], *other)
    wait_for("the rest of the others", lambda: {state(pid) for pid in spared} == {"S"}, 20)


def test_no_pod_is_signalled_when_one_is_unknown(add: Add, cluster: Cluster) -> None:
    _, program = add("v6e-2x2-0", "a")
    with pytest.raises(ClusterError, match="missing"):
        faults.kill_pods(cluster, ["a", "missing"])
    assert faults.kill_pods(cluster, ["a"]) == 1, "it was not killed"
    wait_for("its end", lambda: state(program) == "Z", 20)
