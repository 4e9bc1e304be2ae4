"""The newest versions of one fragment, and which of them a contribution may have as its anchor."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from atoll_runtime.protocol.norms import Norms
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.units import HISTORY, Unit


@dataclass
class Versions:
    """The versions of one shard's fragment `p`."""

    p: int
    size: int
    """Elements; 0 if the shard owns nothing of it."""
    history: list[int]
    """Oldest first. The last is the current one."""
    norms: Norms = field(default_factory=Norms)
    """Norms of recent merges."""
    since: dict[int, float] = field(default_factory=dict)
    """By version, when units were first asked for its contributions. A version that a shard began with has no entry."""
    width: int = 0
    """Elements of a unit's contribution, with its padding if that is known."""

    def __post_init__(self) -> None:
        self.width = self.width or self.size

    @property
    def current(self) -> int:
        return self.history[-1]

    def merged(self, held: Round) -> None:
        """Takes a new version."""
        self.history = [*self.history, held.id.step][-HISTORY:]
        self.since[held.id.step] = held.asked
        self.since = {version: at for version, at in self.since.items() if version >= self.history[0]}
        self.norms.accept(list(held.contributions.levels.values()))

    def least(self, unit: Unit, step: int, rules: Rules) -> int:
        """The oldest anchor that a contribution of this unit to the round of `step` may have. If there is none, a
        version newer than the current one."""
        # If a version is usable, so are all newer ones.
        usable = bisect_left(self.history, True, key=lambda each: not self.unusable(each, unit, step, rules))
        return self.history[usable] if usable < len(self.history) else self.current + 1

    def unusable(self, anchor: int, unit: Unit, step: int, rules: Rules) -> str:
        """Why a contribution of this unit to the round of `step` does not count with this anchor; else empty."""
        current, latest = self.current, unit.included_in.get(self.p)
        if anchor not in self.history:
            return f"anchor {anchor} is not a known version (current: {current})"
        if latest is None and anchor < (met := self._met(unit)):
            return f"a new incarnation counts from version {met}, which was current when it joined, not from {anchor}"
        if latest is not None and anchor < latest:
            return f"the work since version {anchor} was merged already"
        if anchor == current:
            return ""
        if anchor <= unit.spoiled.get(self.p, -1):
            return f"the work since version {anchor} was refused, and {current} is newer"
        if step - anchor > (oldest := rules.oldest(unit.most_turn)):
            return f"anchor {anchor} is {step - anchor} steps old, more than {oldest}"
        return ""

    def owes(self, unit: Unit) -> bool:
        """It is the unit's turn. It can be in one of `Unit.turn` rounds; it may be ready a round early."""
        return len(self.missed(unit)) >= max(1, math.ceil(unit.turn) - 2)

    def missed(self, unit: Unit) -> list[int]:
        """The remembered versions since the unit's last merged contribution, or since its incarnation joined."""
        latest = unit.included_in.get(self.p)
        return self.history[bisect_right(self.history, self._met(unit) if latest is None else latest) :]

    def contributors(self, units: Iterable[Unit]) -> Iterator[str]:
        """Units with a contribution in a remembered version, live or not."""
        return (unit.name for unit in units if unit.included_in.get(self.p, -1) >= self.history[0])

    def _met(self, unit: Unit) -> int:
        """The version that was current when the unit's incarnation joined."""
        return self.history[max(bisect_right(self.history, unit.entered) - 1, 0)]
