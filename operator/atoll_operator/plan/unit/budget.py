"""How often a unit may be restarted, in place or by a new gang: a sliding window, and a back-off inside it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from atoll_operator.api.learnerunit import MAX_RESTARTS, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.unit.failure import (
    ADMISSION_REJECTED,
    CAPACITY_UNAVAILABLE,
    HOST_MAINTENANCE,
    PREEMPTED,
)
from atoll_runtime.contract import VERSION_MISMATCH

BASE_SECONDS = 5.0
MAX_SECONDS = 300.0
SPREAD = 0.2
"""Of a wait, either way: units that failed together do not come back together."""
SKEW_SECONDS = 60.0
"""By which the clock of an operator before this one may be ahead. A restart noted later was noted by a wrong clock."""
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

    A restart of a time that has yet to come counts as one of now, which the next one writes down; no wait is counted
    from it, for each look would move that.

    Args:
        jitter: from 0 to 1; the same for the same wait, or each look at it would move it.
    """
    recent = tuple(
        item if parse_time(item.time) <= now + SKEW_SECONDS else _noted(item, now)
        for item in restarts
        if parse_time(item.time) > now - recovery.window_seconds
    )
    recent = recent[-(MAX_RESTARTS - 1) :]
    counted = sum(not spared(item.reason, recent[:index]) for index, item in enumerate(recent))
    exhausted = counted >= recovery.max_restarts
    if not recent or recent[-1] != restarts[-1]:  # none, or the last one's own time is not believed
        return Verdict(not_before=now, exhausted=exhausted, recent=recent)
    wait = min(BASE_SECONDS * 2.0 ** min(len(recent) - 1, 16), MAX_SECONDS)
    wait *= 1 + SPREAD * (2 * jitter - 1)
    return Verdict(not_before=parse_time(recent[-1].time) + wait, exhausted=exhausted, recent=recent)


def spared(reason: str, before: Sequence[Restart]) -> bool:
    """Whether a restart for this reason is not charged, after those of the window before it.

    A kubelet that turns a pod away may only know better than we what its node has left: from then on the scheduler
    chooses.
    """
    rejected = any(item.reason == ADMISSION_REJECTED for item in before)
    return reason in UNCOUNTED or (reason == ADMISSION_REJECTED and not rejected)


def _noted(restart: Restart, now: float) -> Restart:
    return restart.model_copy(update={"time": format_time(now)})


def jitter(uid: str, incarnation: int) -> float:
    """From 0 to 1, the same for one wait of one unit, also in an operator that was restarted meanwhile."""
    return zlib.crc32(f"{uid}/{incarnation}".encode()) / 2**32
