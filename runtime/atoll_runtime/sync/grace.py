"""How long a round with a quorum waits for more (Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass, field


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


def grace(
    step_seconds: float,
    quorum_seconds: float,
    sync_seconds: float,
    *,
    overlap_steps: float,
    fraction: float,
    max_steps: float,
) -> float:
    """γ·(τ·ξ_step − (ξ_quorum + ξ_sync)), clamped to [0, max_steps·ξ_step], in seconds.

    Args:
        overlap_steps: inner steps that the rounds in flight span: τ in the paper, where P = H; τ·H/P here.
    """
    slack = overlap_steps * step_seconds - (quorum_seconds + sync_seconds)
    return min(max(fraction * slack, 0.0), max_steps * step_seconds)
