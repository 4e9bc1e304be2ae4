"""How often a unit may restart: `recovery.maxRestarts` in a sliding window, and a back-off inside it."""

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
"""Jitter as a share of a wait, so that units that failed together do not come back together."""
SKEW_SECONDS = 60.0
"""How far the clock of an earlier operator may be ahead. A later time comes from a wrong clock."""
UNCOUNTED = frozenset({HOST_MAINTENANCE, PREEMPTED, CAPACITY_UNAVAILABLE, VERSION_MISMATCH})
"""Reasons that are no fault of the unit. They cause a back-off, but are not charged."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """When the next restart may happen."""

    not_before: float
    """Unix seconds; in the past: at once."""
    exhausted: bool
    recent: tuple[Restart, ...]
    """Restarts still within the window, with room for one more."""


def judge(restarts: Sequence[Restart], recovery: RecoverySpec, now: float, jitter: float) -> Allowance:
    """The first heal in a window is immediate; the n-th after it waits 5 s · 2ⁿ⁻¹, at most 300 s, after the last.

    A restart noted for the future counts as one of now, which the next restart writes down. It starts no wait, because
    each look would move that.

    Args:
        jitter: from 0 to 1; it must be the same for the same wait.
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
        return Allowance(not_before=now, exhausted=exhausted, recent=recent)
    wait = min(BASE_SECONDS * 2.0 ** min(len(recent) - 1, 16), MAX_SECONDS)
    wait *= 1 + SPREAD * (2 * jitter - 1)
    return Allowance(not_before=parse_time(recent[-1].time) + wait, exhausted=exhausted, recent=recent)


def spared(reason: str, before: Sequence[Restart]) -> bool:
    """Whether a restart for this reason is not charged. A kubelet may turn a pod away because an old one of the unit
    has not given its chips back yet, so the first `AdmissionRejected` in a window is free.

    Args:
        before: restarts in the window before it.
    """
    rejected = any(item.reason == ADMISSION_REJECTED for item in before)
    return reason in UNCOUNTED or (reason == ADMISSION_REJECTED and not rejected)


def _noted(restart: Restart, now: float) -> Restart:
    return restart.model_copy(update={"time": format_time(now)})


def jitter(uid: str, incarnation: int) -> float:
    """From 0 to 1, the same for one wait of one unit, also in an operator that was restarted meanwhile."""
    return zlib.crc32(f"{uid}/{incarnation}".encode()) / 2**32
