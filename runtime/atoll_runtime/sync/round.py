"""A round in flight: one fragment at one global step, from its opening until it is durable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll_runtime.sync.contributions import Contributions
from atoll_runtime.sync.effects import Member
from atoll_runtime.sync.identifiers import RoundId


@dataclass
class Round:
    """What is known of it."""

    id: RoundId
    opened: float
    expires: float
    rests: float
    """Until when it is kept though nobody is left to wait for."""
    stage: Literal["Collecting", "Receiving", "Merging", "Writing"] = "Collecting"
    """Headers are collected until membership is frozen; then the members' bodies are received."""
    contributions: Contributions = field(default_factory=Contributions)
    grace_until: float | None = None
    """Set when the quorum is met."""
    members: tuple[Member, ...] = ()
    levels: dict[str, float] = field(default_factory=dict)
    """Norms of the members, as `norms` compares them."""
    frozen: float = 0.0
    """When the merge began."""
    pulled: set[tuple[str, int]] = field(default_factory=set)
    """(unit, incarnation) asked so far."""
    declined: set[str] = field(default_factory=set)
    """Units whose answer was not taken: not waited for any more."""
    expected: dict[str, float] = field(default_factory=dict)
    """Seconds until the body is here, as the unit's headers say."""
    deadlines: dict[str, float] = field(default_factory=dict)
    """Until when each unit's body is awaited."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is being written with its merge."""

    def answered(self, unit: str) -> bool:
        """The unit's header is not waited for: it is in, or was not taken."""
        return unit in self.contributions.members or unit in self.declined
