"""What a plan wants told as a Kubernetes Event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Notice:
    """One Event. `occasion` tells two of the same reason apart, such as an incarnation; the same is told once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    occasion: str = ""
