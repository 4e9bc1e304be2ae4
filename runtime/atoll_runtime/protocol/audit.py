"""Whether units get the same result where they evaluate the same examples with the same version of the global model.

Units of one kind (a generation of chips, and a shape of the mesh) run the same program. So their results differ by
rounding at most, and one that differs by more has computed something wrong. How much rounding makes is measured: by the
first audits of a kind, in which nobody is judged. The median of several units decides, so a unit that is wrong from the
beginning does not widen the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_runtime.protocol.messages import Audit

MEASURED = 4
"""Audits of a kind by which its tolerance is measured."""
LEAST = 3
"""Of fewer results none tells which is wrong."""
FACTOR = 8.0
"""The tolerance is so many times the largest deviation that was measured."""
FLOOR = 3e-7
"""Of a result, at least: some units in the last place of float32."""


@dataclass
class Audits:
    """The newest result of each unit with its incarnation, and what was measured of each kind."""

    results: dict[str, tuple[int, Audit]] = field(default_factory=dict)
    measured: dict[str, dict[int, float]] = field(default_factory=dict)
    """By kind and global step, the upper median of the deviations from the median result."""

    def disagreements(
        self, unit: str, incarnation: int, audit: Audit, incarnations: Mapping[str, int]
    ) -> dict[str, str]:
        """Takes a result. Says why units are wrong, by unit, that were judged with it.

        Args:
            incarnations: the present one of each unit; results of others do not count.
        """
        self.results[unit] = incarnation, audit
        found = self._deviations(audit, incarnations)
        if len(found) < LEAST:
            return {}
        known = self.measured.setdefault(audit.kind, {})
        if audit.step in known or len(known) < MEASURED:
            known[audit.step] = sorted(found.values())[len(found) // 2]
            return {}
        tolerance = max(FLOOR, FACTOR * max(known.values()))
        wrong = sorted(name for name, deviation in found.items() if not deviation <= tolerance)
        if 2 * len(wrong) >= len(found):
            return {}  # nobody is the measure of the others
        return {
            name: f"audit: of {len(found)} units with {audit.kind} that evaluated global step {audit.step} it is "
            f"{found[name]:.2g} off the median, {tolerance:.2g} at most is rounding"
            for name in wrong
        }

    def _deviations(self, audit: Audit, incarnations: Mapping[str, int]) -> dict[str, float]:
        """Of each unit's result of this step and kind from their median, relative to that."""
        alike = {
            name: each.loss
            for name, (incarnation, each) in self.results.items()
            if (each.step, each.kind, incarnation) == (audit.step, audit.kind, incarnations.get(name))
        }
        middle = _median(list(alike.values()))
        return {name: _distance(loss, middle) for name, loss in alike.items()}


def _distance(loss: float, middle: float) -> float:
    """Relative; infinite where one of both is not finite."""
    if not (math.isfinite(loss) and math.isfinite(middle)):
        return math.inf
    return abs(loss - middle) / (abs(middle) or 1.0)


def _median(values: list[float]) -> float:
    """The lower one of an even number; what is not finite comes last."""
    ordered = sorted(value if math.isfinite(value) else math.inf for value in values)
    return ordered[(len(ordered) - 1) // 2]
