"""Which rounds a unit takes part in when its link is too slow for all of them. Pure: times are passed in.

Each fragment earns credit: one in the time that the link needs to send every fragment once. A round costs one credit.
So if a transfer takes x times as long as the time between two rounds, the unit is a member of one round in x of each
fragment. A unit on a link that is fast enough takes part in every round.

On a slow link few contributions wait at a time. A fragment that is a turn behind the others may wait beside them, so
that none starves whose rounds open each time while the link is busy. On any other link more may wait, as long as it
catches up within an interval.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import fmean

from atoll_runtime.protocol.messages import MOST_TURN
from atoll_runtime.protocol.pace import Ema
from atoll_runtime.protocol.round import SLACK
from atoll_runtime.protocol.rules import TRANSFER_SECONDS

STAGGER = 0.618
"""After their first contributions fragments have different credit, so that their turns are spread evenly over time."""
MOST_CREDIT = 8.0
"""Fragments that have waited for longer are equal."""
PUSHES, FETCHES = 2, 4
"""Transfers in each direction that may wait for a slow link, or one that has sent no contribution yet, or be on it.
Another round is joined only while there are fewer, but for a fragment that is behind. On a link with a long round trip
there may be `beside` − 1 more."""
USED = 0.98
"""Share of a slow link's time that is used. With all of it in use, queues would grow, and the work that is trained
meanwhile would be lost."""
SMOOTHING = 0.25
MOST_GROWTH = 4.0
"""The largest factor by which one contribution that was not taken raises the expected time. An outage does not predict
the link after it."""
LEAST_MISSED = 1.0
"""A first contribution that was not taken counts as a measurement if it was on the link for more than this many
seconds."""
LAPS = 2
"""Intervals over which their length is averaged."""
NEAR = 0.1
"""Share of a step, or of the time between two rounds, by which a round trip is reduced before it is rounded up. A
shorter round trip counts as 0."""


@dataclass
class LinkShare:
    """One host's link to one shard, which has `fragments` fragments with elements."""

    fragments: int
    interval: float = 0.0
    """Seconds between two rounds of the same fragment, a mean of `LAPS` intervals; 0 while not known."""
    period: float = 1.0
    """It takes part in at most one of this many rounds of each fragment."""
    push_bits: float = 1.0
    fetch_bits: float = 1.0
    """Bits of a contribution and of a version, in the current codec."""
    round_trip: float = 0.0
    """Seconds. A transfer's time does not include them, because the next one has the link while its answer is under
    way."""
    _push: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    """Seconds per bit."""
    _fetch: Ema = field(default_factory=lambda: Ema(SMOOTHING))
    _contributed: set[int] = field(default_factory=set)
    """Fragments that have sent their first contribution. It does not wait for credit, because until then every version
    replaces the unit's work."""
    _credit: dict[int, tuple[float, float]] = field(default_factory=dict)
    """For each fragment its credit, and as of when."""
    _asked: dict[int, tuple[int, float]] = field(default_factory=dict)
    """For each fragment the step of its newest round, and when that round first asked for it."""
    _joined: float = 0.0
    """When the last contribution was given to the link."""

    @property
    def seconds(self) -> float:
        """Expected seconds of one contribution; 0 before the first was sent."""
        return self.push_bits * (self._push.value or 0.0)

    @property
    def load(self) -> float:
        """x: seconds of a transfer in the slower direction, divided by the seconds between two rounds."""
        transfer = max(self.seconds, self.fetch_bits * (self._fetch.value or 0.0))
        return transfer * self.fragments / self.interval if self.interval else 0.0

    @property
    def turn(self) -> float:
        """It takes part in one of this many rounds of each fragment; 0 if in all."""
        turn = max(self.load, self.period)
        return min(turn, MOST_TURN) if turn > 1.0 else 0.0

    @property
    def beside(self) -> int:
        """Transfers in one direction that begin without waiting for the answer to the first, so that the link is used
        during a round trip. A slow link has one: a round trip is short beside a transfer."""
        between = (self.interval or math.inf) / self.fragments
        return 1 + spans(self.round_trip, between * max(self.load, 1.0))

    def pushed(self, p: int, seconds: float, bits: float) -> None:
        """A contribution of fragment `p` was sent in this time; `bits` is 0 if it is not known how many were."""
        if bits:
            _measure(self._push, seconds / bits)
        self._contributed.add(p)

    def fetched(self, seconds: float, bits: float) -> None:
        """A version was fetched in this time."""
        _measure(self._fetch, seconds / bits)

    def asked(self, p: int, step: int, now: float) -> None:
        """The round of `step` asks for fragment `p`. Each further attempt asks again."""
        before = self._asked.get(p)
        if before is None or before[0] < step:
            self._asked[p] = step, now
            if before is not None:
                # A pause of the rounds does not predict the intervals after it.
                gap = min(now - before[1], SLACK * self.interval or math.inf)
                share = 1 / (LAPS * self.fragments) if self.interval else 1.0
                self.interval += share * (gap - self.interval)

    def ready(self, p: int, now: float, pushes: int, fetches: Collection[int]) -> bool:
        """Whether to take part in a round of fragment `p`.

        Args:
            pushes: contributions that wait for the link or are on it.
            fetches: fragments with versions that wait for the link or are on it.
        """
        few = pushes < PUSHES - 1 + self.beside
        free = not self.turn or p not in self._contributed
        if free and (few or self._catches_up(pushes)):
            return True
        credit = {q: self._reckon(q, now) for q in self._asked}
        # A turn behind the others, and the link sends those that wait before the fragment is due again.
        behind = 0 < pushes * self.load < self.fragments and credit[p] >= fmean(credit.values()) + 1.0
        if free:
            return behind
        idle = not pushes and not fetches and now >= self._joined + 2 * self.seconds
        if idle and self.load > self.period:
            return True  # idle for as long as a contribution is expected to take: the link may be faster now
        # One place is kept for a fragment that has waited a whole turn longer.
        kept = (max(credit[q] for q in self._contributed) >= credit[p] + 1.0) + 1 - self.beside
        waiting = len(self._contributed.intersection(fetches))
        return credit[p] >= 1.0 and (behind or (pushes < PUSHES - kept and waiting < FETCHES - kept))

    def _catches_up(self, pushes: int) -> bool:
        """Whether within an interval the link sends so many contributions and those that are added meanwhile.

        On a long link they would wait for answers too, so there it is not expected.
        """
        known = self.seconds > 0 and self.beside == 1
        in_time = (pushes + 1) * self.seconds < TRANSFER_SECONDS
        return known and in_time and pushes * self.load < self.fragments * (1.0 - self.load)

    def joined(self, p: int, now: float) -> None:
        """A contribution of fragment `p` will be sent."""
        left = self._reckon(p, now) - 1.0 if p in self._contributed else p * STAGGER % 1.0
        self._credit[p] = max(0.0, left), now
        self._joined = now

    def missed(self, p: int, seconds: float, bits: float, *, few: bool = True) -> None:
        """That contribution was not taken. Its credit is given back.

        Args:
            seconds: how long it was on the link. If that is more than expected, the expected time of the next one
                rises. Otherwise the round may not have waited for it because the expected time was too long. Then the
                expected time falls; else nothing might be measured again.
            few: fewer than `PUSHES` were before it when its header was sent. Else it says nothing of the link if it was
                never on it.
        """
        expected, taken = self._push.value, seconds / bits
        if expected is None and seconds > LEAST_MISSED:
            self._push.value = SLACK * taken
        elif expected is not None and (few or seconds):
            longer = min(SLACK * taken, MOST_GROWTH * expected)
            self._push.value = longer if taken > expected else expected * (1 - SMOOTHING)
        credit, at = self._credit.get(p, (0.0, self._joined))
        self._credit[p] = min(MOST_CREDIT, credit + 1.0), at

    def _reckon(self, p: int, now: float) -> float:
        credit, at = self._credit.get(p, (0.0, now))
        if self.interval:
            turn = max(self.period, self.load / USED)
            credit = min(MOST_CREDIT, credit + (now - at) / self.interval / turn)
        self._credit[p] = credit, now
        return credit


def spans(round_trip: float, seconds: float) -> int:
    """How many times `seconds` a round trip takes, rounded up; 0 if it takes next to none."""
    return max(0, math.ceil(round_trip / seconds - NEAR))


def _measure(mean: Ema, seconds: float) -> None:
    """Takes a sample. A sample below half of the mean replaces it, because the link is back from an outage."""
    if mean.value is not None and 2 * seconds < mean.value:
        mean.value = seconds
    else:
        mean.add(seconds)
