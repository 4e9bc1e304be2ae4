"""How often a unit may be restarted, in place or by a new gang: a sliding window, and a back-off inside it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from atoll_operator.api.learnerunit import MAX_RESTARTS, Restart
from atoll_operator.api.trainingrun import RecoverySpec
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.failure import CAPACITY_UNAVAILABLE, HOST_MAINTENANCE, PREEMPTED
from atoll_runtime.contract import VERSION_MISMATCH

BASE_SECONDS = 5.0
MAX_SECONDS = 300.0
SPREAD = 0.2
"""Of a wait, either way: units that failed together do not come back together."""
UNCOUNTED = frozenset({HOST_MAINTENANCE, PREEMPTED, CAPACITY_UNAVAILABLE, VERSION_MISMATCH})
"""The hosts are wanted back, no room for the pods, or an image that has to be another: no fault of the unit. They make
a back-off all the same."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """When the next restart may happen."""

    not_before: float
    """Unix seconds; in the past: at once."""
    exhausted: bool
    recent: tuple[Restart, ...]
    """Those still within the window, with room for one more."""


def judge(restarts: Sequence[Restart], recovery: RecoverySpec, now: float, jitter: float) -> Verdict:
    """The first heal in a window is immediate; the n-th after it waits 5 s · 2ⁿ⁻¹, at most 300 s, after the last.

    Args:
        jitter: from 0 to 1; the same for the same wait, or each look at it would move it.
    """
    recent = tuple(item for item in restarts if parse_time(item.time) > now - recovery.window_seconds)
    recent = recent[-(MAX_RESTARTS - 1) :]
    counted = sum(item.reason not in UNCOUNTED for item in recent)
    exhausted = counted >= recovery.max_restarts
    if not recent:
        return Verdict(not_before=now, exhausted=exhausted, recent=recent)
    wait = min(BASE_SECONDS * 2.0 ** min(len(recent) - 1, 16), MAX_SECONDS)
    wait *= 1 + SPREAD * (2 * jitter - 1)
    return Verdict(not_before=parse_time(recent[-1].time) + wait, exhausted=exhausted, recent=recent)


def jitter(uid: str, incarnation: int) -> float:
    """From 0 to 1, the same for one wait of one unit, also in an operator that was restarted meanwhile."""
    return zlib.crc32(f"{uid}/{incarnation}".encode()) / 2**32
