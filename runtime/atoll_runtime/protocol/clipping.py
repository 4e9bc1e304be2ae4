"""How much one unit may count in a merge: its norms and its steps are clipped to a multiple of all members' median.

A unit whose numbers are wrong (a bit that flipped in an exponent, a loss scale that ran away) has a norm far from the
others'. RDA takes the mean of the norms as the length of the merge: without a bound, one norm of 10⁶ decides it. So do
10⁹ claimed steps, for weights grow with them, and not every claim can be held against the time that has passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from atoll_runtime.protocol.messages import Part

CLIP = 4.0
"""Times the median. Honest units differ by less, unless their numbers of inner steps do by far."""
LEAST_UNITS = 3
"""Of fewer, no median tells which is wrong."""


def clipped(values: Sequence[float], times: float = CLIP) -> list[float]:
    """The values by unit, each at most so many times their lower median.

    Units whose value is 0 have no say in the median: an expert may have had tokens in a few units alone.
    """
    moved = sorted(value for value in values if value > 0)
    if len(moved) < LEAST_UNITS:
        return list(values)
    limit = times * moved[(len(moved) - 1) // 2]
    return [min(value, limit) for value in values]


def weights(members: Sequence[Part], guard: bool) -> list[float]:
    """How much each member counts (§3.2): tokens times tokens per step; with the guard, of `CLIP` times the members'
    median of steps at most."""
    steps = [member.steps for member in members]
    counted = clipped(steps) if guard else steps
    return [
        member.tokens * member.tokens / member.steps * (count / member.steps)
        for member, count in zip(members, counted, strict=True)
    ]


def spans(members: Sequence[Part], version: int, interval: int) -> list[int]:
    """By what each member's outer gradient is divided: the number of intervals that it is the work of, while others
    were merged. 1 for one whose anchor is the `version` that is merged into.

    In full, each of M units that take turns would move Θ by M intervals' work in its turn, where all of them together
    move it by one.
    """
    return [
        max(1, min(1 + math.ceil((version - member.anchor) / interval), round(member.steps / interval)))
        for member in members
    ]


def factors(shares: Sequence[float], norms: Sequence[float], bounded: Sequence[float]) -> list[float]:
    """By what each outer gradient is multiplied in a plain mean."""
    return [
        share if bound == norm else share * (bound / norm)
        for share, norm, bound in zip(shares, norms, bounded, strict=True)
    ]
