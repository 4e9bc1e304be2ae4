"""How long a round with a quorum waits for more (Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll_runtime.protocol.rules import Rules


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
        """γ·(τ·ξ_step − (ξ_quorum + ξ_sync)), clamped to [0, max_steps·ξ_step], in seconds.

        τ is the inner steps that the rounds in flight span: in the paper, where P = H, as many as these; τ·H/P here.
        """
        span = rules.overlap * rules.interval / rules.fragments * step
        slack = span - (self.quorum.value or 0.0) - (self.sync.value or 0.0)
        return min(max(rules.grace_fraction * slack, 0.0), rules.grace_steps * step)
