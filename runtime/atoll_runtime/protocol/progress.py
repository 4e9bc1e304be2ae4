"""Counts a unit's work that is in no version yet, by fragment. It is the same on all hosts of the unit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_runtime.protocol.identifiers import NO_CUT, CutId
from atoll_runtime.protocol.shardview import PullRequest


@dataclass
class Counter:
    """Work on one fragment that is in no version that the unit holds."""

    version: int
    since: tuple[int, int] = (0, 0)
    """Steps and tokens of this incarnation before that work."""
    offered: tuple[int, int] | None = None
    """The same up to the newest contribution."""


@dataclass(frozen=True)
class Contribution:
    """What a contribution says of itself."""

    anchor: int
    steps: int
    tokens: int
    trained: int
    """Tokens of this incarnation, of which the contribution holds the last `tokens`."""
    cut: CutId


class Progress:
    """Counters of every fragment, and the newest cut at which the unit has recorded itself."""

    def __init__(self, versions: Sequence[int]) -> None:
        self.counters = [Counter(version) for version in versions]
        self.steps = self.trained = 0
        """Steps and tokens of this incarnation."""
        self.cut = NO_CUT

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(counter.version for counter in self.counters)

    def step(self, tokens: int) -> None:
        """An inner step on `tokens` tokens has ended."""
        self.steps += 1
        self.trained += tokens

    def adopt(self, number: int, version: int) -> None:
        """A version of a fragment was adopted. Work up to the newest contribution is merged or lost, and no longer
        counts here. Without a contribution, that is all work."""
        since = self.counters[number].offered or (self.steps, self.trained)
        self.counters[number] = Counter(version, since)

    def offer(self, number: int, ask: PullRequest) -> Contribution | None:
        """A contribution of this fragment; None while it has no step, or an older anchor than asked for."""
        counter = self.counters[number]
        steps, tokens = self.steps - counter.since[0], self.trained - counter.since[1]
        if steps == 0 or counter.version < ask.least:
            return None
        counter.offered = self.steps, self.trained
        return Contribution(counter.version, steps, tokens, self.trained, self.cut)

    def see(self, cut: CutId) -> bool:
        """True if the cut is new. Then the unit records itself now, before it takes or sends anything else."""
        if cut <= self.cut:
            return False
        self.cut = cut
        return True
