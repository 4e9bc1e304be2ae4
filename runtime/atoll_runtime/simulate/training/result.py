"""What a training has come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """The global model's held-out loss, and how it came about."""

    loss: float
    """Nats per token, of held-out text."""
    tokens: int
    """Trained by all learners together, those of lost incarnations included."""
    merged_tokens: int
    """Of these, what reached the global model, averaged over fragments."""
    parameters: int
    steps: int
    """Of the global clock; of data-parallel training its own."""
    seconds: float = 0.0
    """Simulated."""
    merges: int = 0
    members: float = 0.0
    """Learners in a merge, on average."""
    real_interval: float = 0.0
    """H as measured."""
    losses: int = 0
    """Learners that were lost."""
