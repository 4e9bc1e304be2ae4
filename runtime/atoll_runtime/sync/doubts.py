"""Cuts that learners tell of, and that a shard does not believe yet.

A learner's word makes a shard record itself, so a false one must not: a cut's number may be no further on than the
clock of some shard could be. One that is doubted is looked at again when more is known of the other shards.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from atoll_runtime.sync.events import CutId
from atoll_runtime.sync.rules import Rules

ATTEMPTS = 3
"""Of a round, after which a shard believes the learners that it needs rather than itself."""


def doubt(cut: CutId, known: int, rules: Rules) -> str:
    """Why a cut is not believed where no shard is known to be beyond the global step `known`; empty when it is.

    Cuts are named by a shard's clock, or follow one another where it stands still; the next one comes with the first
    merge after an interval. A shard that was away hears of the others' clocks after the cut, and one that lost its
    journal knows its newest cut that is whole. What a host says to hold itself proves nothing: it is the same word.
    """
    if cut.step <= known + rules.cut_interval + rules.interval:
        return ""
    return f"cut: {cut.step}, but no shard is known to be beyond global step {known}"


@dataclass
class Doubts:
    """What connected hosts tell."""

    told: dict[tuple[str, int], CutId] = field(default_factory=dict)
    """By unit and host: a cut that is doubted."""

    def drop(self, unit: str, host: int) -> None:
        """The host is gone, or tells anew."""
        self.told.pop((unit, host), None)

    def unopposed(self, live: Set[str], attempts: int, quorum: int) -> CutId | None:
        """The earliest cut of those that live units tell, where those that tell of none are too few for a round.

        For some attempts nothing was merged for it. A shard that lost its journal would doubt them for ever.
        """
        if attempts < ATTEMPTS:
            return None
        word: dict[str, CutId] = {}
        for (unit, _), cut in self.told.items():
            word[unit] = min(cut, word.get(unit, cut))
        told = live & word.keys()
        return min(word[unit] for unit in told) if told and len(live - told) < quorum else None
