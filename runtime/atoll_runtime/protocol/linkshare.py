"""Which rounds a unit takes part in when its link is too slow for all of them. Pure: times are passed in.

Each fragment earns credit, one round's worth in the time that the link needs to send every fragment once. A round
costs one credit. So a unit whose transfer takes x times as long as the time between two rounds is a member of one round
in x of each fragment. A unit on a link that is fast enough takes part in every round.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from atoll_runtime.protocol.messages import MOST_TURN
from atoll_runtime.protocol.pace import Ema
from atoll_runtime.protocol.round import SLACK

STAGGER = 0.618
"""Fragments start with different credit, so that their turns are spread evenly over the link's time."""
MOST_CREDIT = 4.0
PUSHES, FETCHES = 2, 4
"""Transfers in each direction that may wait for the link or be on it, for another round to be joined; on a link with a
long round trip as many more as `beside` says."""
USED = 0.98
"""Share of a slow link's time that is given away: where all is, queues grow, and what is trained meanwhile is lost."""
SMOOTHING = 0.25
MOST_GROWTH = 4.0
"""Of what is expected of a contribution, by one that was not taken: an outage says nothing of the link after it."""
LEAST_MISSED = 1.0
"""Seconds on the link of a first contribution that was not taken, from which on they tell what to expect."""
LAPS = 2
"""Intervals over which `lap` is a mean."""
NEAR = 0.1
"""A round trip of so much of a step, or of the time between two rounds, is that of a unit next door."""


@dataclass
class LinkShare:
    """One host's link to one shard, of whose fragments `fragments` have elements."""

    fragments: int
    interval: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    """Seconds between two rounds of the same fragment."""
    lap: float = 0.0
    """The same as the mean of some intervals; 0 while it is not known."""
    period: float = 1.0
    """It takes part in one of so many rounds of each fragment at most."""
    push_bits: float = 1.0
    fetch_bits: float = 1.0
    """Of a contribution and of a version, in the codec of now."""
    round_trip: float = 0.0
    """Seconds. They are no part of a transfer's: while its answer is under way, the next one has the link."""
    _push: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    """Seconds of a bit."""
    _fetch: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    _contributed: set[int] = field(default_factory=set)
    """Fragments whose first contribution was sent. It does not wait for credit: until then every version replaces the
    unit's work."""
    _credit: dict[int, float] = field(default_factory=dict)
    _earned: dict[int, float] = field(default_factory=dict)
    """When the credit of each fragment was reckoned last."""
    _asked: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Of each fragment the step of its newest round, and when that round asked for it first."""
    _joined: float = 0.0
    """When the last contribution was given to the link."""

    @property
    def seconds(self) -> float:
        """Expected of one contribution; 0 before the first was sent."""
        return self.push_bits * (self._push.value or 0.0)

    @property
    def load(self) -> float:
        """x: seconds of a transfer, the slower direction, divided by the seconds between two rounds."""
        transfer = max(self.seconds, self.fetch_bits * (self._fetch.value or 0.0))
        return transfer * self.fragments / self.interval.value if self.interval.value else 0.0

    @property
    def turn(self) -> float:
        """It takes part in one of so many rounds of each fragment; 0 where it does in all."""
        turn = max(self.load, self.period)
        return min(turn, MOST_TURN) if turn > 1.0 else 0.0

    @property
    def beside(self) -> int:
        """Transfers in one direction that are begun without waiting for the first one's answer."""
        return 1 + spans(self.round_trip, (self.interval.value or math.inf) / self.fragments)

    def pushed(self, p: int, seconds: float, bits: float) -> None:
        """A contribution of fragment `p` was sent in this time."""
        _measure(self._push, seconds / bits)
        self._contributed.add(p)

    def fetched(self, seconds: float, bits: float) -> None:
        """A version was fetched in this time."""
        _measure(self._fetch, seconds / bits)

    def asked(self, p: int, step: int, now: float) -> None:
        """The round of `step` asks for fragment `p`; another attempt of it asks again."""
        before = self._asked.get(p)
        if before is None or before[0] < step:
            self._asked[p] = step, now
            if before is not None:
                # A pause of the rounds says little of those after it.
                gap = min(now - before[1], SLACK * self.lap or math.inf)
                self.interval.add(gap)
                share = 1 / (LAPS * self.fragments) if self.lap else 1.0
                self.lap += share * (gap - self.lap)

    def ready(self, p: int, now: float, pushes: int, fetches: Collection[int]) -> bool:
        """Whether to take part in a round of fragment `p`.

        Args:
            pushes: contributions that wait for the link or are on it.
            fetches: the same of versions, by fragment.
        """
        if max(self.load, self.period) <= 1.0 or p not in self._contributed:
            return pushes < PUSHES - 1 + self.beside
        idle = not pushes and not fetches and now >= self._joined + 2 * self.seconds
        if idle and self.load > self.period:
            return True  # for as long as a contribution is expected to take: it may be faster than it was
        credit = {q: self._reckon(q, now) for q in self._contributed}
        # One place is kept for a fragment whose rounds have always found the link in use.
        kept = (max(credit.values()) >= credit[p] + 1.0) + 1 - self.beside
        waiting = len(self._contributed.intersection(fetches))
        return credit[p] >= 1.0 and pushes < PUSHES - kept and waiting < FETCHES - kept

    def joined(self, p: int, now: float) -> None:
        """A contribution of fragment `p` is to be sent."""
        self._credit[p] = max(0.0, self._reckon(p, now) - 1.0)
        self._joined = now

    def missed(self, p: int, seconds: float, bits: float) -> None:
        """That contribution was not taken: the credit is given back.

        Args:
            seconds: on the link without success. Where that is more than was expected, more is expected of the next
                one. Else perhaps too much was expected, so that it was left out: less is expected of the next one, or
                nothing would be measured again.
        """
        expected, taken = self._push.value, seconds / bits
        if expected is None and seconds > LEAST_MISSED:
            self._push.value = SLACK * taken
        elif expected is not None:
            longer = min(SLACK * taken, MOST_GROWTH * expected)
            self._push.value = longer if taken > expected else expected * (1 - SMOOTHING)
        self._credit[p] = min(MOST_CREDIT, self._credit.get(p, 0.0) + 1.0)

    def _reckon(self, p: int, now: float) -> float:
        credit = self._credit.get(p, (p * STAGGER) % 1.0)
        if self.interval.value:
            rounds = (now - self._earned.get(p, now)) / self.interval.value
            turn = max(self.period, self.load / USED)
            credit = min(MOST_CREDIT, credit + rounds / turn)
        self._earned[p], self._credit[p] = now, credit
        return credit


def spans(round_trip: float, seconds: float) -> int:
    """How many times so many seconds a round trip takes, rounded up; 0 where that is next to nothing."""
    return max(0, math.ceil(round_trip / seconds - NEAR))


def _measure(mean: Ema, seconds: float) -> None:
    """Takes a sample. One less than half of the mean replaces it: the link is back from an outage."""
    if mean.value is not None and 2 * seconds < mean.value:
        mean.value = seconds
    else:
        mean.add(seconds)
