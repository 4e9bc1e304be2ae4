"""Averages of time: the pace of units and of the run's clock, and how long a round with a quorum waits for more.

Shard 0 keeps the clock: it advances by an inner step of the slowest live unit. A unit's pace is by its reports. No
single step may rule it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from atoll_runtime.protocol.rules import Rules

FACTOR = 0.25
"""Weight of a new sample."""
BOUND = 4.0
"""A sample counts as so many times the average at most. One long step (a stalled disk, a machine that was frozen)
then adds three quarters to the average, which is forgotten in a few steps; a unit that has become slow for good is
followed by that much a step: in five its average is 16 times what it was."""


@dataclass
class StepTime:
    """An average in seconds."""

    value: float | None = None
    steady: bool = False
    """Two samples are in. The first alone, which may hold more than a step, says that the unit steps, not how fast."""
    least: float = math.inf
    """The shortest sample."""

    def add(self, sample: float) -> None:
        """Of the first two the shorter counts: nothing else is known yet to tell which of them is odd."""
        self.least = min(self.least, sample)
        if self.value is None:
            self.value = sample
        elif not self.steady:
            self.value, self.steady = min(self.value, sample), True
        else:
            self.value += FACTOR * (min(sample, BOUND * self.value) - self.value)


@dataclass
class Pace:
    """When the clock may advance."""

    last: float = -math.inf
    """When it did, or should have: at most a step ago then, so that a step that came late is made up for."""

    def advance(self, now: float, seconds: float) -> None:
        """It does now; `seconds`: an inner step of the slowest live unit."""
        self.last = max(self.last + seconds, now - seconds)

    def due(self, seconds: float) -> float:
        """When it may again, at the learners' pace as it is now: it may be another one than it was."""
        return self.last + seconds


@dataclass
class Ema:
    """Exponential moving average; the first sample is taken whole."""

    factor: float
    value: float | None = None

    def add(self, sample: float) -> None:
        self.value = sample if self.value is None else self.value + self.factor * (sample - self.value)


@dataclass
class Timing:
    """Seconds: ξ_quorum (opened until K are in) and ξ_sync (merge, journal, publish)."""

    quorum: Ema = field(default_factory=lambda: Ema(0.25))
    sync: Ema = field(default_factory=lambda: Ema(0.25))

    def grace(self, step: float, rules: Rules) -> float:
        """γ·(τ·ξ_step − (ξ_quorum + ξ_sync)), clamped to [0, max_steps·ξ_step], in seconds (Eq. 3).

        τ is the inner steps that the rounds in flight span: in the paper, where P = H, as many as these; τ·H/P here.
        """
        span = rules.overlap * rules.interval / rules.fragments * step
        slack = span - (self.quorum.value or 0.0) - (self.sync.value or 0.0)
        return min(max(rules.grace_fraction * slack, 0.0), rules.grace_steps * step)
