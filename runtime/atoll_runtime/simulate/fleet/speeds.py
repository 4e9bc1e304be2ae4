"""How long a learner's inner steps take: its own pace, and a drift around it."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

DRIFT_STEPS = 24
"""Steps for which a learner keeps a drawn pace: one interval H.

The paper injects "variance" without saying how long it lasts. What makes hosts uneven (neighbours, heat, input) lasts
for longer than the τ = 2 steps that overlap hides; drawn anew at each step, most of it would average out there.
"""
LEAST = 0.1
"""A drawn pace is at least this share of the learner's own: no step takes no time."""


@dataclass
class Drift:
    """One learner's step times: normal around `pace` with a relative spread, held for `steps` steps each."""

    pace: float
    """Mean seconds of a step."""
    spread: float
    steps: int
    rng: Generator
    _left: int = 0
    _now: float = 0.0

    def next(self) -> float:
        """Seconds of the next step. Learners that begin together change at different moments."""
        if self._left == 0:
            first = self._now == 0.0
            self._left = int(self.rng.integers(1, self.steps + 1)) if first else self.steps
            self._now = self.pace * max(LEAST, 1.0 + self.spread * float(self.rng.standard_normal()))
        self._left -= 1
        return self._now
