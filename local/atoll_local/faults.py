"""Kills processes, as happens in real clusters. `Machine.stop` cuts a node's power."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from atoll_local import cgroups
from atoll_local.cluster import Cluster
from atoll_local.errors import ClusterError
from atoll_local.machine import SANDBOX


def processes(cluster: Cluster, pod_uid: str) -> set[int]:
    """Every process of a pod's containers and of its sandbox, found by cgroup. Raises `ClusterError` if no node runs
    that pod."""
    name = f"pod{pod_uid}"
    for machine in cluster.machines:
        for quality in ("kubepods", "kubepods/burstable", "kubepods/besteffort"):
            found = cgroups.processes(f"{machine.cgroup}/{quality}/{name}")
            if found:
                return found
    raise ClusterError(f"no process of a pod with uid {pod_uid} on any node")


def kill_pods(cluster: Cluster, pod_uids: Iterable[str]) -> int:
    """Kills every process of the pods' containers at once; returns how many. Sandboxes stay. Raises `ClusterError` if
    one of the pods has no process."""
    pids = [pid for uid in pod_uids for pid in processes(cluster, uid) if not _is_sandbox(pid)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)


def _is_sandbox(pid: int) -> bool:
    """Whether this process holds the pod's network. Killing it is a different fault."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0] == SANDBOX.encode()
    except OSError:
        return True
