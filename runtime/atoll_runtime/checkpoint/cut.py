"""A whole global checkpoint in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Cut:
    """The whole global model at a consistent cut."""

    step: int
    """Global step t."""
    theta: dict[str, np.ndarray]
    """Θ, float32, by flat tensor name."""
    momentum: dict[str, np.ndarray]
    """Outer momentum b, the same names and shapes; empty where it was not loaded."""
    versions: tuple[int, ...]
    """Global step of the last merge of each fragment, shard by shard."""
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `run_uid`, `model`, `fingerprint`, `machines` (of each shard), and what else the syncer wants back."""
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was passed over."""

    step: int
    reason: str
    complete: bool = True
    """It has its manifest, so it was whole once."""

    def __str__(self) -> str:
        return f"step {self.step} skipped: {self.reason}"
