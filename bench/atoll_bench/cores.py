"""Cores of this machine: which ones a process may use, its CPU time, and the machine's load."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


def usable() -> tuple[int, ...]:
    """Cores that this thread may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def pin(process: int, cores: Iterable[int]) -> None:
    """Pins every thread of a process. Repeats until it finds no new thread; later threads inherit the cores."""
    wanted, seen = set(cores), set[str]()
    while new := {thread.name for thread in Path(f"/proc/{process}/task").iterdir()} - seen:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), wanted)
        seen |= new


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
