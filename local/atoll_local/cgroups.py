"""The cgroup of a cluster: one folder in every hierarchy (v1), or one in the unified tree (v2)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def unified() -> bool:
    """True on a host with cgroup v2 only."""
    return (ROOT / "cgroup.controllers").is_file()


def hierarchies() -> list[Path]:
    """Every hierarchy that may contain a container."""
    if unified():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def create(name: str) -> None:
    """Makes `/name` (slashes allowed) in every hierarchy, ready to hold children."""
    for hierarchy in hierarchies():
        folder = hierarchy
        for part in name.strip("/").split("/"):
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":
                # An empty cpuset refuses every process.
                for key in ("cpuset.cpus", "cpuset.mems"):
                    (folder / key).write_text((parent / key).read_text())
            elif unified():
                controllers = " ".join(f"+{c}" for c in (parent / "cgroup.controllers").read_text().split())
                (parent / "cgroup.subtree_control").write_text(controllers)


def processes(name: str) -> set[int]:
    """Every process in `/name` or below."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        top = hierarchy / name.strip("/")
        for folder, _, files in os.walk(top):
            if "cgroup.procs" in files:
                try:
                    found |= {int(line) for line in (Path(folder) / "cgroup.procs").read_text().split()}
                except OSError:
                    continue
    return found


def remove(name: str, timeout: float = 10.0) -> None:
    """Kills what is left in `/name` and removes it everywhere; missing parts are fine."""
    deadline = time.monotonic() + timeout
    while (left := processes(name)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / name.strip("/"), topdown=False):
            while time.monotonic() < deadline:
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.05)
