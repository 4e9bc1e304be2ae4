"""Averages of time: the pace of units, and how long a round with a quorum waits for more.

A unit's pace is an average over its reports, so that no single step determines it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from atoll_runtime.protocol.rules import Rules

FACTOR = 0.25
"""Weight of a new sample."""
BOUND = 4.0
"""A sample counts as at most this many times the average. So one long step (a stalled disk, a frozen machine) adds at
most three quarters to the average, which fade in a few steps. The average of a unit that stays slow can grow by the
same factor in each step: in five steps to 16 times."""


@dataclass
class StepTime:
    """An average in seconds."""

    value: float | None = None
    steady: bool = False
    """Two samples are in. The first alone may hold more than a step: it shows that the unit steps, but not how fast."""
    least: float = math.inf
    """The shortest sample."""

    def add(self, sample: float) -> None:
        """Takes a sample. Of the first two the shorter counts, because nothing else shows which of them is unusual."""
        self.least = min(self.least, sample)
        if self.value is None:
            self.value = sample
        elif not self.steady:
            self.value, self.steady = min(self.value, sample), True
        else:
            self.value += FACTOR * (min(sample, BOUND * self.value) - self.value)


@dataclass
class Ema:
    """Exponential moving average that starts with the first sample."""

    factor: float
    value: float | None = None

    def add(self, sample: float) -> None:
        self.value = sample if self.value is None else self.value + self.factor * (sample - self.value)


@dataclass
class Timing:
    """Seconds: ξ_quorum (from opening until K are in) and ξ_sync (merge, journal, publish)."""

    quorum: Ema = field(default_factory=lambda: Ema(0.25))
    sync: Ema = field(default_factory=lambda: Ema(0.25))

    def grace(self, step: float, rules: Rules) -> float:
        """γ·(τ·ξ_step − (ξ_quorum + ξ_sync)), clamped to [0, max_steps·ξ_step], in seconds (Eq. 3).

        τ·ξ_step stands for the time that τ rounds in flight span. The paper has P = H; here it is τ·H/P·ξ_step.
        """
        span = rules.overlap * rules.interval / rules.fragments * step
        slack = span - (self.quorum.value or 0.0) - (self.sync.value or 0.0)
        return min(max(rules.grace_fraction * slack, 0.0), rules.grace_steps * step)
