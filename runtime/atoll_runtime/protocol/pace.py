"""The pace of the run's clock, which shard 0 keeps: an inner step of the slowest live unit."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
