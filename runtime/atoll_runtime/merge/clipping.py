"""How much one unit's outer gradient may count: its norm is clipped to a multiple of the median of all units' norms.

A unit whose numbers are wrong (a bit that flipped in an exponent, a loss scale that ran away) has a norm far from the
others'. RDA takes the mean of the norms as the length of the merge: without a bound, one norm of 10⁶ decides it.
"""

from __future__ import annotations

from collections.abc import Sequence

CLIP = 4.0
"""Times the median. Honest units differ by less, unless their numbers of inner steps do by far."""
LEAST_UNITS = 3
"""Of fewer, no median tells which is wrong."""


def clipped(norms: Sequence[float]) -> list[float]:
    """The norms of one piece, by unit, each at most `CLIP` times their lower median.

    Units whose norm is 0 have no say in the median: an expert may have had tokens in a few units alone.
    """
    moved = sorted(norm for norm in norms if norm > 0)
    if len(moved) < LEAST_UNITS:
        return list(norms)
    limit = CLIP * moved[(len(moved) - 1) // 2]
    return [min(norm, limit) for norm in norms]


def factors(shares: Sequence[float], norms: Sequence[float], bounded: Sequence[float]) -> list[float]:
    """By what each outer gradient is multiplied in a plain mean."""
    return [
        share if bound == norm else share * (bound / norm)
        for share, norm, bound in zip(shares, norms, bounded, strict=True)
    ]
