"""Who is a member of a round, and how long a member's body is awaited. Decided by headers, which are small and come at
once; bodies take as long as links need. Pure."""

from __future__ import annotations

from collections.abc import Mapping

SLACK = 2.0
"""A body is awaited for so many times as long as its sender expects."""
RETURN, RETURN_SECONDS = 0.25, 5.0
"""Of an interval, and the most seconds, that the body of a unit is awaited whose session has ended: it connects anew,
and what has come of the body is not sent again."""


def choose(arrivals: Mapping[str, float], minimum: int, limit: float) -> list[str]:
    """The members of a round, by name.

    Args:
        arrivals: when the body is expected, of each unit whose headers are in.
        minimum: K. The quickest so many units are members, however slow.
        limit: when the fragment is due again. A body that comes later counts in a later round.
    """
    quickest = sorted(arrivals, key=lambda name: (arrivals[name], name))
    return sorted(name for n, name in enumerate(quickest) if n < minimum or arrivals[name] <= limit)


def deadline(now: float, expected: float, patience: float, longest: float) -> float:
    """Until when a body is awaited.

    Args:
        expected: seconds, as its header says; 0 where the sender has no measurement yet.
        patience: seconds that are granted in any case.
        longest: seconds that no transfer exceeds; for one of which nothing is known.
    """
    return now + (SLACK * expected + patience if expected > 0 else longest)
