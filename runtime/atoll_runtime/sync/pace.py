"""A shard's global clock: when it may advance, and how it keeps level with the other shards.

Shards do not talk to each other. Learners carry their clocks from one to the other, so what a shard hears is
never ahead of the truth. One that fell behind (its process was away) takes up to H steps without waiting for the
learners' pace, in which each fragment is due once, and skips what lies before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll_runtime.sync.events import CLOCK_ZERO, ShardClock


@dataclass
class Pace:
    """The clock t of one shard."""

    shard: int
    interval: int
    """H."""
    step: int = 0
    """The last global step launched."""
    last: float = -math.inf
    """When that was, or should have been: at most a step ago then, so that a step that came late is made up for."""
    others: dict[int, ShardClock] = field(default_factory=dict)
    """What was heard of the other shards."""
    goal: str = ""
    """The run's target: an end at another one says nothing."""

    def hear(self, clocks: Sequence[ShardClock]) -> None:
        """Takes what a learner has seen; nothing goes back."""
        for shard, clock in enumerate(clocks):
            known = self.others.get(shard, CLOCK_ZERO)
            ending = clock.ending if clock.goal == self.goal else 0
            if shard != self.shard:
                step, cut = max(known.step, clock.step), max(known.cut, clock.cut)
                self.others[shard] = ShardClock(step, max(known.ending, ending), self.goal, cut)

    @property
    def ahead(self) -> int:
        """The furthest step known of any shard."""
        return max((clock.step for clock in self.others.values()), default=0)

    @property
    def cut(self) -> int:
        """The latest cut known of any other shard."""
        return max((clock.cut for clock in self.others.values()), default=0)

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
        """Every other shard is at least this far into its end."""
        heard = [clock.ending for clock in self.others.values()]
        return sum(level >= ending for level in heard) == shards - 1
