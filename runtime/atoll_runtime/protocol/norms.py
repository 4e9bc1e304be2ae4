"""Checks the norm of a contribution against recent merges of its fragment, and against the other contributions.

A unit with wrong numbers (a flipped bit in an exponent, a loss scale that diverged) has a norm far above the others'.
Norms are divided by the square root of the contribution's steps, because a contribution of a hundred steps is longer
than one of a single step, but not a hundred times longer. They are compared as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

MERGES = 8
"""Merges of a fragment that are remembered with their norms."""
EACH = 8
"""Norms that are remembered of a merge. If there are more, this many at even distances are."""
WARM = 4
"""Remembered merges that are needed before they count. In a warm-up norms grow by factors of hundreds."""
LEAST_UNITS = 3
"""Values that a median needs to show which one is wrong."""
FLOOR = math.log(32.0)
"""A norm may always be this far above the median, whatever the spread."""
SPREADS, CEILING = 6.0, math.log(256.0)
"""A norm may be this many spreads above the median, but never farther than the ceiling. The spread is the median
distance from the median, scaled to a standard deviation. It is large where norms are of two sizes."""
ATTEMPTS = 7
"""After this many attempts of a round, which take 120 steps, only units that have answered count, because others say
nothing of the norms."""
LEAST_SPREAD = 16
"""Norms that the spread needs. Of fewer it says nothing."""
SCALE = 1.4826
"""Standard deviation divided by median distance, for normal values."""


@dataclass
class Norms:
    """Norms of one fragment. `merges` has the accepted ones of each merge, sorted; the oldest merge is first."""

    merges: list[list[float]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Units that had a contribution refused since the last merge."""

    def outliers(self, found: Mapping[str, float], units: set[str]) -> dict[str, str]:
        """Why contributions to one round are refused, by unit. Those of other units are taken.

        When more than half of `units` have been refused since the last merge, the run has changed (a new learning
        rate), not its units. Then the remembered norms are dropped, and none is refused.

        Args:
            found: `level` of each member's norm.
            units: those that can contribute now, and those that have lately.
        """
        known = [each for merge in self.merges for each in merge] if len(self.merges) >= WARM else []
        present = [level for level in found.values() if level > -math.inf]
        if len(known) + len(present) < LEAST_UNITS:
            return {}
        middle, limit = bounds([*known, *present])
        wrong = {
            unit: f"norm: {math.exp(level - middle):.3g} times the median of its fragment, "
            f"{math.exp(limit - middle):.3g} at most is taken"
            for unit, level in sorted(found.items())
            if level > limit
        }
        self.refused = sorted({*self.refused, *wrong})
        if wrong and 2 * len(units.intersection(self.refused)) > len(units):
            self.merges, self.refused = [], []
            return {}
        return wrong

    def accept(self, levels: Sequence[float]) -> None:
        """Remembers the norms of a merge."""
        kept = sorted(level for level in levels if level > -math.inf)
        if len(kept) > EACH:
            kept = [kept[i * (len(kept) - 1) // (EACH - 1)] for i in range(EACH)]
        if kept:
            self.merges = [*self.merges, kept][-MERGES:]
            self.refused = []


def level(norm: float, steps: float) -> float:
    """The norm of a contribution of `steps` steps, as it is compared; -inf for 0."""
    return math.log(norm) - 0.5 * math.log(steps) if norm > 0 else -math.inf


def bounds(levels: Sequence[float]) -> tuple[float, float]:
    """The lower median, and the largest level that is taken."""
    middle = median_low(levels)
    spread = (
        SCALE * median_low([abs(each - middle) for each in levels]) if len(levels) >= LEAST_SPREAD else 0.0
    )
    return middle, middle + min(max(FLOOR, SPREADS * spread), CEILING)
