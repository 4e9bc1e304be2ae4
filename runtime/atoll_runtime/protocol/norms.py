"""Whether the length of a contribution fits what was merged into its fragment lately, and what others contribute now.

A unit whose numbers are wrong (a bit that flipped in an exponent, a loss scale that ran away) has a norm far above the
others'. Norms are compared as logarithms, per square root of a contribution's steps: one of a hundred steps is longer
than one of a single step, but not a hundred times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MERGES = 8
"""Of a fragment whose norms are remembered."""
EACH = 8
"""Norms of a merge that are; of more, so many at even distances."""
WARM = 4
"""Merges after which they count. A learning rate that warms up lets the first norms grow by hundreds."""
LEAST_UNITS = 3
"""Of fewer in a round, none tells which is wrong."""
FLOOR = math.log(32.0)
"""A norm may be so far above the median, whatever the spread is."""
SPREADS = 6.0
"""Else so many times the spread: the median distance from the median, in the scale of a standard deviation."""
ATTEMPTS = 4
"""Of a round, after which only units count that have answered: one that never does tells nothing of the others."""
LEAST_SPREAD = 16
"""Of fewer norms the spread says nothing."""
SCALE = 1.4826
"""Standard deviation over median distance, of normal values."""


@dataclass
class Norms:
    """Of one fragment. `merges` is what was accepted, oldest first, each sorted."""

    merges: list[list[float]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Units of which one was refused since the last merge."""

    def outliers(self, found: Mapping[str, float], units: int) -> dict[str, str]:
        """Why the contributions of these units to one round are refused, by unit; the others are taken.

        When more than half of the units have been refused since the last merge, it is the run that has changed (a
        new learning rate), not its units: what is remembered is forgotten, and none is refused.

        Args:
            found: `level` of each member's norm.
            units: number of those that can contribute now.
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
        if wrong and 2 * len(self.refused) > units:
            self.merges, self.refused = [], []
            return {}
        return wrong

    def accept(self, levels: Sequence[float]) -> None:
        """Norms of a merge."""
        kept = sorted(level for level in levels if level > -math.inf)
        if len(kept) > EACH:
            kept = [kept[i * (len(kept) - 1) // (EACH - 1)] for i in range(EACH)]
        if kept:
            self.merges = [*self.merges, kept][-MERGES:]
            self.refused = []


def level(norm: float, steps: float) -> float:
    """The norm of a contribution of so many steps, as it is compared; -inf of 0."""
    return math.log(norm) - 0.5 * math.log(steps) if norm > 0 else -math.inf


def bounds(levels: Sequence[float]) -> tuple[float, float]:
    """The lower median, and the most that is taken."""
    middle = median(levels)
    spread = SCALE * median([abs(each - middle) for each in levels]) if len(levels) >= LEAST_SPREAD else 0.0
    return middle, middle + max(FLOOR, SPREADS * spread)


def median(values: Sequence[float]) -> float:
    """The lower one of an even number."""
    return sorted(values)[(len(values) - 1) // 2]
