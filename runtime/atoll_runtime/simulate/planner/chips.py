"""What one chip of each generation computes and holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """One TPU chip."""

    flops: float
    """Peak FLOP/s in bfloat16."""
    memory: float
    """Bytes of HBM."""


CHIPS = {
    "v5e": Chip(197e12, 16e9),
    "v5p": Chip(459e12, 95e9),
    "v6e": Chip(918e12, 32e9),
    "tpu7x": Chip(2307e12, 192e9),
}
"""By generation, as in the vendor's pages of v5e, v5p, v6e and TPU7x."""
