"""What a contribution may claim: tokens are checked against the unit's batch, steps against the elapsed time.

Both decide how much the contribution counts. Without the check, a unit that counts wrong (an overflowed counter, an
altered image) would dominate every merge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

FASTER = 4.0
"""A unit's average step may be this many times shorter than the shortest reported step of a unit, because not
every step is reported and clocks differ."""
SPARE = 16
"""Steps allowed in addition, for a unit that has just joined and has not reported its pace."""
LATE_SECONDS = 600.0
"""A unit may have begun so long before it joined, if it did not reach the shard."""

CLOCK_SECONDS = 60.0
"""The clocks of two machines may differ by this much."""


def step_tokens(known: Mapping[str, Sequence[int]], unit: str) -> Sequence[int]:
    """Tokens of one step of this unit, from the entry of the unit or else of its pool; empty if there is neither.

    There is more than one value while the units of a pool change their batch one after another.
    """
    pool, _, number = unit.rpartition("-")
    return known.get(unit) or (known.get(pool, ()) if number.isdigit() else ())


def impossible(
    steps: int, tokens: int, known: Mapping[str, Sequence[int]], unit: str, *, elapsed: float, fastest: float
) -> str:
    """Why a unit cannot have made this many steps on this many tokens in this time; empty if it can.

    Args:
        known: tokens of one step, as for `step_tokens`. A unit without an entry may claim the largest of them.
        elapsed: seconds since the round that merged the unit's newest merged contribution first asked a unit; infinite
            if that is not known. The unit adopted the version of that round later. For a unit without a
            merged contribution: the same for the round of its anchor, plus the longest time that an anchor may be old.
        fastest: seconds of the shortest step of a unit; 0 if none is known.
    """
    if tokens > (largest := steps * _largest(known, unit)):
        return f"tokens: {tokens} in {steps} steps, in which a unit of its batch trains on {largest}"
    if fastest > 0 and steps > (most := most_steps(elapsed, fastest)):
        return f"steps: {steps} in {elapsed:.3g} s, which have time for {most:.0f}"
    return ""


def untimely(
    trained: int, known: Mapping[str, Sequence[int]], unit: str, *, present: float, fastest: float
) -> str:
    """Why a unit cannot have trained on so many tokens since its incarnation began; empty if it can.

    Args:
        known: as for `impossible`.
        present: seconds since the incarnation joined.
        fastest: as for `impossible`.
    """
    steps = most_steps(present + LATE_SECONDS, fastest) if fastest > 0 else SPARE
    if trained > (most := steps * _largest(known, unit)):
        return (
            f"tokens: {trained} in all, {present:.3g} s after the unit has joined, with time for {most:.0f}"
        )
    return ""


def _largest(known: Mapping[str, Sequence[int]], unit: str) -> float:
    """Tokens of one step at most. A smaller batch does no harm: the unit's may have been changed."""
    return max(step_tokens(known, unit) or chain.from_iterable(known.values()), default=math.inf)


def most_steps(seconds: float, fastest: float) -> float:
    """The steps for which there is time."""
    return SPARE + FASTER * seconds / fastest
