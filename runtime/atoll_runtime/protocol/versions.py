"""The newest versions of one fragment, and what the merges that made them tell of the next contributions."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from atoll_runtime.protocol import anchors
from atoll_runtime.protocol.norms import Norms
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.units import HISTORY, Unit


@dataclass
class Versions:
    """Of one shard's fragment `p`."""

    p: int
    size: int
    """Elements; 0 where the shard owns nothing of it."""
    history: list[int]
    """Oldest first. The last is the current one."""
    norms: Norms = field(default_factory=Norms)
    """Those merged lately."""
    since: dict[int, float] = field(default_factory=dict)
    """When units were first asked for what is in these versions, where that was in this process."""
    width: int = 0
    """Elements of a unit's contribution, with its padding where that is known."""

    def __post_init__(self) -> None:
        self.width = self.width or self.size

    @property
    def current(self) -> int:
        return self.history[-1]

    def merged(self, held: Round) -> None:
        """Takes a new version."""
        self.history = [*self.history, held.id.step][-HISTORY:]
        self.since[held.id.step] = held.asked
        self.since = {version: at for version, at in self.since.items() if version in self.history}
        self.norms.accept(list(held.levels.values()))

    def least(self, unit: Unit, step: int, rules: Rules) -> int:
        """The oldest version that a contribution of this unit at `step` may be taken against."""
        return anchors.least(step, self.history, *self._limits(unit, rules))

    def unusable(self, anchor: int, unit: Unit, step: int, rules: Rules) -> str:
        """Why a contribution of this unit at `step` is not taken against this version; empty when it is."""
        return anchors.unusable(anchor, step, self.history, *self._limits(unit, rules))

    def _limits(self, unit: Unit, rules: Rules) -> tuple[int | None, int, int, int]:
        """What bounds a unit's anchors."""
        met = self.history[max(bisect_right(self.history, unit.entered) - 1, 0)]
        return unit.latest(self.p), rules.oldest(unit.turn), unit.spoiled.get(self.p, -1), met
