"""A round in flight: one fragment at one global step, from its opening until it is durable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll_runtime.sync.contributions import Contributions
from atoll_runtime.sync.events import Member, RoundId


@dataclass
class Round:
    """What is known of it."""

    id: RoundId
    opened: float
    expires: float
    rests: float
    """Until when it is kept though nobody is left to wait for."""
    stage: Literal["Collecting", "Merging", "Writing"] = "Collecting"
    contributions: Contributions = field(default_factory=Contributions)
    grace_until: float | None = None
    """Set when the quorum is met."""
    members: tuple[Member, ...] = ()
    frozen: float = 0.0
    pulled: set[tuple[str, int]] = field(default_factory=set)
    """(unit, incarnation) asked so far."""
    declined: set[str] = field(default_factory=set)
    """Units whose answer was not taken: not waited for any more."""
    arriving: list[tuple[str, int]] = field(default_factory=list)
    """(unit, host) of each part that was admitted and whose body is under way."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is being written with its merge."""

    def answered(self, unit: str) -> bool:
        """The unit is not waited for: its contribution is in, or was not taken."""
        return unit in self.contributions.members or unit in self.declined
