"""A Kubernetes Event that a plan asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Notice:
    """One Event. Notices of the same reason and `occasion` (such as an incarnation) are sent once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    occasion: str = ""
