"""A shard's global clock: when it may advance, and how it keeps level with the other shards.

Shards do not talk to each other. Learners carry their clocks from one to the other, so what a shard hears is never
ahead of the truth, unless a learner is broken: where there are several, no single one makes it leap or end. One that
fell behind (its process was away) takes up to H steps without waiting for the learners' pace, in which each fragment is
due once, and skips what lies before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from atoll_runtime.sync.events import CLOCK_ZERO, ShardClock


@dataclass
class Pace:
    """The clock t of one shard."""

    shard: int
    interval: int
    """H."""
    quorum: int
    """K."""
    step: int = 0
    """The last global step launched."""
    last: float = -math.inf
    """When that was, or should have been: at most a step ago then, so that a step that came late is made up for."""
    others: dict[int, ShardClock] = field(default_factory=dict)
    """What was heard of the other shards."""
    believed: dict[int, ShardClock] = field(default_factory=dict)
    """What of that leads this shard's clock, or ends its rounds."""
    told: dict[str, dict[int, ShardClock]] = field(default_factory=dict)
    """By unit."""
    goal: str = ""
    """The run's target: an end at another one says nothing."""

    def hear(self, unit: str, clocks: Sequence[ShardClock], live: Set[str]) -> None:
        """Takes what a unit's learner has seen; nothing goes back. `live`: units that can contribute now."""
        told = self.told.setdefault(unit, {})
        for shard, clock in enumerate(clocks):
            if shard != self.shard and clock != CLOCK_ZERO:  # it has reached that shard
                word = replace(clock, ending=clock.ending if clock.goal == self.goal else 0, goal=self.goal)
                told[shard] = furthest(told.get(shard), word)
                self.others[shard] = furthest(self.others.get(shard), word)
                self.believed[shard] = furthest(self.believed.get(shard), self._borne_out(shard, unit, live))

    def _borne_out(self, shard: int, unit: str, live: Set[str]) -> ShardClock:
        """What a unit says of another shard, as far as that is near, or a second live unit says it too.

        An ending, and a leap of more than H: what no shard could undo. A shard that was away hears them of all, once
        they live; it waits for as many as a round needs, where that is two or more. Where one is enough, the shards go
        on with one: it is believed if no other live unit has seen anything of that shard.
        """
        word, known = self.told[unit][shard], self.believed.get(shard, CLOCK_ZERO)
        step, cut = (max(self.step + self.interval, so_far) for so_far in (known.step, known.cut))
        if word.step <= step and word.cut <= cut and word.ending <= known.ending:
            return word
        words = [self.told[name][shard] for name in live if shard in self.told.get(name, {})]
        if len(words) < min(self.quorum, 2):
            words = [known]
        return ShardClock(
            word.step if word.step <= step else second(word.step for word in words),
            second(word.ending for word in words),
            self.goal,
            word.cut if word.cut <= cut else second(word.cut for word in words),
        )

    @property
    def ahead(self) -> int:
        """The furthest step of any other shard."""
        return max((clock.step for clock in self.believed.values()), default=0)

    @property
    def cut(self) -> int:
        """The latest cut of any other shard."""
        return max((clock.cut for clock in self.believed.values()), default=0)

    @property
    def behind(self) -> bool:
        """Another shard is further on."""
        return self.ahead > self.step

    def following(self) -> int:
        """The step that comes next."""
        return max(self.step, self.ahead - self.interval) + 1

    def advance(self, now: float, seconds: float) -> int:
        """Takes the next step; `seconds`: an inner step of the slowest live unit."""
        # One that catches up has made its step now, or two level shards would drive each other on, with no pace at all.
        self.last = min(max(self.last + seconds, now - seconds), now)
        self.step = self.following()
        return self.step

    def due(self, seconds: float) -> float:
        """When the clock may advance again, at the learners' pace as it is now: it may be another one than it was."""
        return -math.inf if self.behind else self.last + seconds

    def may_advance(self, now: float, seconds: float) -> bool:
        return now >= self.due(seconds)

    def all_end(self, shards: int, ending: int) -> bool:
        """Every other shard is at least this far into its end, as far as anybody has seen."""
        heard = [clock.ending for clock in self.others.values()]
        return sum(level >= ending for level in heard) == shards - 1


def furthest(known: ShardClock | None, word: ShardClock) -> ShardClock:
    """Of two words on one clock, what is later in either."""
    if known is None:
        return word
    step, ending = max(known.step, word.step), max(known.ending, word.ending)
    return ShardClock(step, ending, word.goal, max(known.cut, word.cut))


def second(values: Iterable[int]) -> int:
    """What two of them reach at least; of one alone, that one."""
    return sorted(values)[-2:][0]
