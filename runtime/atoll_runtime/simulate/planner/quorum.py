"""How often fewer than K units live, where units fail and heal independently of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def living(shares: Sequence[tuple[int, float]]) -> Floats:
    """Probability of 0, 1, … living units, from (units, share of time that each lives) by pool."""
    result = np.ones(1)
    for units, share in shares:
        for _ in range(units):
            result = np.convolve(result, (1.0 - share, share))
    return result


def below(shares: Sequence[tuple[int, float]], quorum: int) -> float:
    """Share of time in which fewer than `quorum` units live."""
    return float(living(shares)[:quorum].sum())


def below_while_living(shares: Sequence[tuple[int, float]], quorum: int, pool: int) -> float:
    """Of the time that one unit of pool number `pool` lives, the share in which too few live with it."""
    others = [
        (units - (index == pool), share)
        for index, (units, share) in enumerate(shares)
        if units > (index == pool)
    ]
    return below(others, quorum - 1)
