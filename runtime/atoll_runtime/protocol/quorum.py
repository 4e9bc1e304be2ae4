"""When a round is merged, waits, or is given up, and the reason in words where somebody asks."""

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
    contributed: int
    awaited: Collection[str]
    minimum: int
    """K."""

    @property
    def why(self) -> str:
        """For a status: a sentence as long as the list of those that are missing."""
        names = ", ".join(sorted(self.awaited))
        if self.contributed >= self.minimum:
            return f"{self.contributed} in (K={self.minimum}), grace window for {names}"
        waits = f"waiting for {names}" if names else "no live unit left to wait for"
        return f"{short(self.contributed, self.minimum)}, {waits}"


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
        return Waiting(grace_until, count, awaited, minimum)
    if now >= expires:
        return Expired(f"{short(count, minimum)} at the time-out")
    return Waiting(expires, count, awaited, minimum)


def short(count: int, minimum: int) -> str:
    """A round below quorum, in words."""
    return f"{count} of K={minimum} contributions in"
