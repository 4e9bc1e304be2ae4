"""How much one unit may count in a merge: its norms and steps are clipped to a multiple of the median of all members.

A unit with wrong numbers (a flipped bit in an exponent, a loss scale that diverged) has a norm far from the others'.
RDA takes the mean of the norms as the length of the merge, so without a bound one norm of 10⁶ decides that length. 10⁹
claimed steps would also decide the merge, because weights grow with steps, and not every claim can be checked against
the elapsed time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from atoll_runtime.protocol.messages import Part
from atoll_runtime.protocol.norms import LEAST_UNITS

CLIP = 4.0
"""Multiple of the median. Honest units differ by less, unless their numbers of inner steps differ widely."""


def clipped(values: Sequence[float], times: float = CLIP) -> list[float]:
    """The values by unit, each clipped to `times` their lower median.

    Values of 0 do not count in the median, because an expert may have had tokens in only a few units.
    """
    moved = [value for value in values if value > 0]
    if len(moved) < LEAST_UNITS:
        return list(values)
    limit = times * median_low(moved)
    return [min(value, limit) for value in values]


def weights(members: Sequence[Part], guard: bool) -> list[float]:
    """How much each member counts (§3.2): tokens times tokens per step. With the guard, a member counts for at most
    `CLIP` times the median of the members' steps."""
    steps = [member.steps for member in members]
    counted = clipped(steps) if guard else steps
    return [
        member.tokens * member.tokens / member.steps * (count / member.steps)
        for member, count in zip(members, counted, strict=True)
    ]


def divisors(members: Sequence[Part], version: int, interval: int) -> list[int]:
    """The divisor of each member's outer gradient: the intervals of work in it, at most one more than its anchor is
    behind. It is 1 if the anchor is the `version` that is merged into.

    Undivided, each of M units that take turns would move Θ by the work of M intervals in its turn. M units that are
    merged together move it by the work of one.
    """
    return [
        max(1, min(1 + math.ceil((version - member.anchor) / interval), round(member.steps / interval)))
        for member in members
    ]


def factors(shares: Sequence[float], norms: Sequence[float], bounded: Sequence[float]) -> list[float]:
    """The factor of each outer gradient in a plain mean, with its norm reduced to `bounded`."""
    return [
        share if bound == norm else share * (bound / norm)
        for share, norm, bound in zip(shares, norms, bounded, strict=True)
    ]
