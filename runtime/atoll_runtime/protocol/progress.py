"""Counts a unit's work that is in no version yet, by fragment. It is the same on all hosts of the unit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_runtime.protocol.identifiers import NO_CUT, CutId
from atoll_runtime.protocol.link import Ask


@dataclass
class Counter:
    """Work on one fragment that is in no version that the unit holds."""

    version: int
    steps: int = 0
    tokens: int = 0
    offered: tuple[int, int] | None = None
    """Steps and tokens of the newest contribution."""


@dataclass(frozen=True)
class Offer:
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
        self.trained = 0
        """Tokens of this incarnation."""
        self.cut = NO_CUT

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(counter.version for counter in self.counters)

    def step(self, tokens: int) -> None:
        """An inner step on `tokens` tokens has ended."""
        self.trained += tokens
        for counter in self.counters:
            counter.steps += 1
            counter.tokens += tokens

    def adopt(self, number: int, version: int) -> None:
        """A version of a fragment was adopted. Work up to the newest contribution is merged or lost, and no longer
        counts here. Without a contribution, that is all work."""
        old = self.counters[number]
        steps, tokens = old.offered or (old.steps, old.tokens)
        self.counters[number] = Counter(version, old.steps - steps, old.tokens - tokens)

    def offer(self, number: int, ask: Ask) -> Offer | None:
        """A contribution of this fragment; None while it has no step, or an older anchor than asked for."""
        counter = self.counters[number]
        if counter.steps == 0 or counter.version < ask.least:
            return None
        counter.offered = counter.steps, counter.tokens
        return Offer(counter.version, counter.steps, counter.tokens, self.trained, self.cut)

    def see(self, cut: CutId) -> bool:
        """True if the cut is new. Then the unit records itself now, before it takes or sends anything else."""
        if cut <= self.cut:
            return False
        self.cut = cut
        return True
