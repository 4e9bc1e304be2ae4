"""The newest versions of one fragment, and against which of them a contribution counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
        return least(step, self.history, *self._limits(unit, rules))

    def unusable(self, anchor: int, unit: Unit, step: int, rules: Rules) -> str:
        """Why a contribution of this unit at `step` is not taken against this version; empty when it is."""
        return unusable(anchor, step, self.history, *self._limits(unit, rules))

    def _limits(self, unit: Unit, rules: Rules) -> tuple[int | None, int, int, int]:
        """What bounds a unit's anchors."""
        met = self.history[max(bisect_right(self.history, unit.entered) - 1, 0)]
        return unit.latest(self.p), rules.oldest(unit.turn), unit.spoiled.get(self.p, -1), met


def unusable(
    anchor: int, step: int, history: Sequence[int], latest: int | None, oldest: int, refused: int, met: int
) -> str:
    """Why a contribution to the round of `step` with this anchor does not count; empty when it does.

    Args:
        history: known versions, oldest first.
        latest: the version that holds this incarnation's newest merged contribution; None where none was merged.
        oldest: steps. An anchor of more is too old, unless nothing newer was merged.
        refused: the newest version against which a contribution of this incarnation was refused; -1 where none was.
        met: the version that was current when the incarnation joined; only where `latest` is None.
    """
    current = history[-1]
    if anchor not in history:
        return f"anchor {anchor} is not a known version (current: {current})"
    if latest is None and anchor < met:
        return f"a new incarnation counts from version {met}, which was current when it joined, not from {anchor}"
    if latest is not None and anchor < latest:
        return f"the work since version {anchor} was merged already"
    if anchor != current and anchor <= refused:
        return f"the work since version {anchor} was refused, and {current} is newer"
    if anchor != current and step - anchor > oldest:
        return f"anchor {anchor} is {step - anchor} steps old, more than {oldest}"
    return ""


def least(step: int, history: Sequence[int], *limits: Any) -> int:
    """The oldest usable anchor; the next version to come when there is none. `limits`: see `unusable`."""
    usable = (anchor for anchor in history if not unusable(anchor, step, history, *limits))
    return min(usable, default=history[-1] + 1)
