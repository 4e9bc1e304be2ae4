"""Compare the results of units that evaluate the same examples with the same version of the global model.

Units of one kind (chip generation, mesh shape, codec and compiler) run the same program, so their results differ only
by rounding. A unit with a result that differs by more has computed something wrong. The first audits of a kind measure
how much rounding changes a result, and judge no unit. They take the median deviation of the units, so a unit that is
wrong from the beginning does not widen the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low

from atoll_runtime.protocol.messages import Audit

MEASURED = 4
"""Audits that measure the tolerance of a kind."""
LEAST = 3
"""Results that an audit needs. Fewer do not show which one is wrong."""
FACTOR = 8.0
"""The tolerance is this many times the largest measured deviation."""
FLOOR = 3e-7
"""The least tolerance, relative to the result: some units in the last place of float32."""


@dataclass
class Audits:
    """The newest result of each unit with its incarnation, and the measured deviations of each kind."""

    results: dict[str, tuple[int, Audit]] = field(default_factory=dict)
    measured: dict[str, dict[int, float]] = field(default_factory=dict)
    """By kind and global step, the upper median of the deviations from the median result."""

    def disagreements(
        self, unit: str, incarnation: int, audit: Audit, incarnations: Mapping[str, int]
    ) -> dict[str, str]:
        """Takes a result. Returns the reason, by unit, for each unit that is wrong by the results of its step and kind.

        Args:
            incarnations: the current one of each unit; results of other incarnations do not count.
        """
        self.results[unit] = incarnation, audit
        found = self._deviations(audit, incarnations)
        if len(found) < LEAST:
            return {}
        known = self.measured.setdefault(audit.kind, {})
        if audit.step in known or len(known) < MEASURED:
            middle = sorted(found.values())[len(found) // 2]
            if math.isfinite(middle):  # otherwise half of the units are wrong, which measures nothing
                known[audit.step] = middle
            return {}
        tolerance = max(FLOOR, FACTOR * max(known.values()))
        wrong = sorted(name for name, deviation in found.items() if not deviation <= tolerance)
        if 2 * len(wrong) >= len(found):
            return {}  # without a majority nothing shows which results are right
        return {
            name: f"audit: of {len(found)} units with {audit.kind} that evaluated global step {audit.step} it is "
            f"{found[name]:.2g} off the median, {tolerance:.2g} at most is rounding"
            for name in wrong
        }

    def _deviations(self, audit: Audit, incarnations: Mapping[str, int]) -> dict[str, float]:
        """The relative deviation of each unit's result of this step and kind from the median of these results."""
        alike = {
            name: each.loss
            for name, (incarnation, each) in self.results.items()
            if (each.step, each.kind, incarnation) == (audit.step, audit.kind, incarnations.get(name))
        }
        middle = median_low(loss if math.isfinite(loss) else math.inf for loss in alike.values())
        return {name: _distance(loss, middle) for name, loss in alike.items()}


def _distance(loss: float, middle: float) -> float:
    """The relative distance; infinite if either value is not finite."""
    if not (math.isfinite(loss) and math.isfinite(middle)):
        return math.inf
    return abs(loss - middle) / (abs(middle) or 1.0)
