"""When a round is merged, waits, or is given up, and the reason in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Ready:
    """Freeze the membership and merge."""


@dataclass(frozen=True)
class Waiting:
    """Nothing to do before `until`, unless something arrives."""

    until: float
    why: str


@dataclass(frozen=True)
class Expired:
    """Below quorum for too long: discard the attempt whole."""

    why: str


def decide(
    contributed: Collection[str],
    awaited: Collection[str],
    *,
    minimum: int,
    grace_until: float | None,
    expires: float,
    now: float,
) -> Ready | Waiting | Expired:
    """The state of one round.

    Args:
        contributed: units whose whole contribution is in.
        awaited: live units that may still contribute. One that left or was replaced is not among them.
        minimum: K.
        grace_until: end of the grace window; None below quorum.
        expires: when an attempt below quorum is given up.
    """
    count = len(contributed)
    if count >= minimum and grace_until is not None:
        if not awaited or now >= grace_until:
            return Ready()
        return Waiting(
            grace_until, f"{count} in (K={minimum}), grace window for {', '.join(sorted(awaited))}"
        )
    missing = f"{count} of K={minimum} contributions in"
    if now >= expires:
        return Expired(f"{missing} at the time-out")
    waits = f"waiting for {', '.join(sorted(awaited))}" if awaited else "no live unit left to wait for"
    return Waiting(expires, f"{missing}, {waits}")
