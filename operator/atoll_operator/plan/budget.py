"""How often a unit may be re-created: a sliding window, and a back-off inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_operator.api.learnerunit import Restart
from atoll_operator.api.trainingrun import RecoverySpec
from atoll_operator.plan.clock import parse_time

BASE_SECONDS = 5.0
MAX_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """When the next re-creation may happen."""

    not_before: float
    """Unix seconds; in the past: at once."""
    exhausted: bool
    recent: tuple[Restart, ...]
    """Those still within the window."""


def judge(restarts: Sequence[Restart], recovery: RecoverySpec, now: float) -> Verdict:
    """The first heal in a window is immediate; the n-th after it waits 5 s · 2ⁿ⁻¹, at most 300 s, after the last."""
    recent = tuple(item for item in restarts if parse_time(item.time) > now - recovery.window_seconds)
    if len(recent) >= recovery.max_restarts:
        return Verdict(not_before=now, exhausted=True, recent=recent)
    if not recent:
        return Verdict(not_before=now, exhausted=False, recent=recent)
    wait = min(BASE_SECONDS * 2.0 ** (len(recent) - 1), MAX_SECONDS)
    return Verdict(not_before=parse_time(recent[-1].time) + wait, exhausted=False, recent=recent)
