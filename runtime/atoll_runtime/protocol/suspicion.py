"""When a unit is suspect: too many of its newest contributions were refused for their claims or their norm.

A single refusal may be an accident. A unit that is refused again and again has a permanent fault in its chips or its
memory, which another process on the same hosts would not mend. The operator gives it other hosts.

The window counts contributions, not seconds, so that it is the same for steps of any length. An incarnation's outcomes
are the bits of one number, the newest in the lowest bit; 1 is a refusal, 0 a merge.
"""

from __future__ import annotations

REFUSALS = 8
"""Refusals that make a unit suspect. A healthy unit is refused less than once in ten thousand contributions."""
WINDOW = 32
"""Newest contributions that count."""


def with_outcome(outcomes: int, refused: bool) -> int:
    """The outcomes after one more."""
    return (outcomes << 1 | refused) & ((1 << WINDOW) - 1)


def suspicion(outcomes: int, newest: str) -> str:
    """Why a unit with these outcomes is suspect; empty if it is not.

    Args:
        newest: why its newest contribution was refused.
    """
    count = outcomes.bit_count()
    if count < REFUSALS:
        return ""
    return f"{count} of its newest {WINDOW} contributions were refused, the last one for {newest}"
