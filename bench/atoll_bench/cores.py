"""Cores of this machine: which ones a process may use, its CPU time, and the machine's load."""

from __future__ import annotations

import os
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


def usable() -> tuple[int, ...]:
    """Cores that this thread may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def used(process: int) -> float:
    """CPU seconds of all threads of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def busy() -> float:
    """CPU seconds of this machine since it started."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(map(int, (user, nice, system, *interrupts))) * TICK


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {f"{name.replace('-', '_')}_cpu": after[name] - before[name] for name in before}
