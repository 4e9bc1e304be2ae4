"""Faults affect only the processes of the named pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_local import cgroups, faults
from atoll_local.cluster import Cluster
from atoll_local.errors import ClusterError
from atoll_local.pause import pause_program
from atoll_local.process import wait_for


class Pods:
    """Real processes, listed in a tree of files like that of cgroup v1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[bytes]] = []
        self.pause = root / "pause"
        self.pause.write_bytes(pause_program())
        self.pause.chmod(0o755)

    def add(self, node: str, uid: str, quality: str = "besteffort") -> tuple[int, int]:
        """Adds a pod with its sandbox and one program. Returns both pids."""
        pids = [self._start(command) for command in ([str(self.pause)], ["sleep", "60"])]
        for name, pid in zip(("sandbox", "program"), pids, strict=True):
            folder = self.root / "memory" / "atoll-t" / node / "kubepods" / quality / f"pod{uid}" / name
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(f"{pid}\n")
        return pids[0], pids[1]

    def _start(self, command: list[str]) -> int:
        process = subprocess.Popen(command)
        self.started.append(process)
        return process.pid

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait(20)


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    root = tmp_path / "cgroup"
    (root / "memory").mkdir(parents=True)
    monkeypatch.setattr(cgroups, "ROOT", root)
    # The sandbox is recognised by its command line in the image.
    monkeypatch.setattr(faults, "SANDBOX", str(root / "pause").encode())
    made = Pods(root)
    yield made
    made.end()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("ATOLL_STATE", str(tmp_path / "state"))
    return Cluster("t")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_killed_pods_lose_their_programs_at_once_and_keep_their_sandboxes(
    pods: Pods, cluster: Cluster
) -> None:
    first = pods.add("v6e-2x4-0", "a")
    second = pods.add("v6e-2x4-1", "b", "burstable")
    other = pods.add("v6e-2x2-0", "c")
    assert faults.kill_pods(cluster, ["a", "b"]) == 2
    wait_for("the end of both", lambda: state(first[1]) == state(second[1]) == "Z", 20)
    spared = (first[0], second[0], *other)
    wait_for("the rest of the others", lambda: {state(pid) for pid in spared} == {"S"}, 20)


def test_no_pod_is_signalled_when_one_is_unknown(pods: Pods, cluster: Cluster) -> None:
    _, program = pods.add("v6e-2x2-0", "a")
    with pytest.raises(ClusterError, match="missing"):
        faults.kill_pods(cluster, ["a", "missing"])
    assert faults.kill_pods(cluster, ["a"]) == 1, "it was not killed"
    wait_for("its end", lambda: state(program) == "Z", 20)
