"""Measures a host's link to the syncer by its transfers. Pure: times are passed in."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from atoll_runtime.protocol.identifiers import Count, Figure

WINDOW_SECONDS = 300.0
"""Extremes and the busy share are over this many last seconds."""
MOST_PERIODS = 1024
"""Busy periods that are remembered. If they span less than the window, so does the busy share."""
SAMPLES = 3
"""The rate of a direction is the best of this many transfers. So a fast one counts at once, slow ones after as many."""
BESIDE = 32
"""Ended transfers that are remembered, to know which ones shared the link."""
LEAST_SECONDS = 1e-3
"""Least seconds of a transfer, for an answer that came as soon as a round trip allows."""

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class LinkUse:
    """What a link is used for. The names are those of `LinkReport`."""

    codec: Annotated[str, Meta(pattern="^(|float32|bf16|int8|int4)$")] = ""
    streams: Count = 0
    chunk_kib: Count = 0
    period: Figure = 0.0
    """It takes part in one of this many rounds of each fragment."""
    load: Figure = 0.0
    """Share of an interval that the transfers of every round take."""
    reason: Annotated[str, Meta(max_length=256)] = ""
    advice: Annotated[str, Meta(max_length=256)] = ""
    fetch: Annotated[str, Meta(pattern="^(|float32|bf16|int8|int4)$")] = ""
    """Codec of versions."""

    @property
    def told(self) -> dict[str, str | float]:
        """What is chosen. Each change of it is noted with the reason."""
        return {name: getattr(self, name) for name in ("codec", "fetch", "streams", "chunk_kib", "period")}


@dataclass(frozen=True)
class LinkReading:
    """A host's link to all shards together."""

    up_gbps: Figure = 0.0
    """The largest rate of the window in Gbit/s, from the host to the syncer; 0 if nothing was sent."""
    down_gbps: Figure = 0.0
    """The same from the syncer to the host."""
    rtt_seconds: Figure = 0.0
    """The shortest time between a request, `Hello` included, and the first byte of its answer; 0 before the first."""
    busy_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the time with transfers under way, in the direction in which that is more."""
    failures: Count = 0
    """Sessions, transfers and connections of transfers that broke since the link was made."""
    use: LinkUse = LinkUse()


@dataclass(eq=False)
class Transfer:
    """A transfer that is under way or has ended."""

    direction: Direction
    since: float
    """When the link began to carry it, as far as is known."""
    bits: float
    until: float = math.inf
    carried: bool = True
    """False while a fetch waits for its first byte: this time is the shard's and says nothing about the link."""


class LinkMeter:
    """Takes the beginning and the end of each transfer. Transfers of several shards share the link, so a rate is that
    of all concurrent transfers."""

    def __init__(self, now: float) -> None:
        self._made, self._failures = now, 0
        self._lanes: dict[Direction, _Lane] = {"up": _Lane(), "down": _Lane()}
        self._rtt, self._newest_rtt = _Largest(), 0.0  # of the negative round trip; the newest one

    def began(self, direction: Direction, now: float, bits: float) -> Transfer:
        """A transfer of at most this many bits begins."""
        lane = self._lanes[direction]
        transfer = Transfer(direction, now, bits, carried=direction == "up")
        if not lane.active:
            lane.since, lane.bits = now, 0.0
        lane.active.append(transfer)
        return transfer

    def ended(self, transfer: Transfer, now: float, bits: float) -> None:
        """A transfer of this many bits ended; 0 if it is not known how many have arrived."""
        lane = self._lanes[transfer.direction]
        lane.active.remove(transfer)
        lane.bits += bits
        seconds = now - lane.since
        if bits and seconds > 0:
            lane.rates.add(now, lane.bits * 1e-9 / seconds)
            # The link of a sender is free before the answer has arrived.
            answer = self.round_trip(now) if transfer.direction == "up" else 0.0
            transfer.bits, transfer.until = bits, max(now - answer, transfer.since + LEAST_SECONDS)
            lane.keep(transfer)
        if not lane.active:
            lane.periods.append((lane.since, now))

    def answered(self, transfer: Transfer, seconds: float, now: float) -> None:
        """The first byte of an answer came `seconds` after its request."""
        transfer.since, transfer.carried = now, True
        self.welcomed(seconds, now)

    def welcomed(self, seconds: float, now: float) -> None:
        """An answer came after `seconds`. A round trip takes no longer than that."""
        self._rtt.add(now, -seconds)
        self._newest_rtt = seconds

    def round_trip(self, now: float) -> float:
        """The shortest round trip of the window. If it has none, the newest one: a unit that fetches seldom does not
        become near. 0 before the first."""
        return -self._rtt.value(now) or self._newest_rtt

    def rate(self, direction: Direction, now: float) -> float:
        """Recent bits per second: the best of the last transfers, but no more than those under way show. Infinite while
        there are too few."""
        return self._lanes[direction].rate(now - self.round_trip(now))

    def failed(self) -> None:
        """A transfer or a session broke."""
        self._failures += 1

    def reading(self, now: float, use: LinkUse) -> LinkReading:
        """What the window shows, and what the link is used for."""
        up, down = self._lanes["up"], self._lanes["down"]
        return LinkReading(
            up.rates.value(now),
            down.rates.value(now),
            self.round_trip(now),
            max(lane.busy(self._made, now) for lane in (up, down)),
            self._failures,
            use,
        )


class _Largest:
    """The largest value of the window. Values that a later one exceeds are dropped, so the kept ones are in falling
    order."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now, value))

    def value(self, now: float) -> float:
        """The largest value; 0 if the window has none."""
        while self._values and self._values[0][0] < now - WINDOW_SECONDS:
            self._values.popleft()
        return self._values[0][1] if self._values else 0.0


@dataclass
class _Lane:
    """One direction."""

    active: list[Transfer] = field(default_factory=list)
    """Transfers under way."""
    since: float = 0.0
    """When the busy period began."""
    bits: float = 0.0
    """Bits of the transfers that have ended in it."""
    rates: _Largest = field(default_factory=_Largest)
    periods: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_PERIODS))
    """Beginning and end of the last busy periods."""
    ended: deque[Transfer] = field(default_factory=lambda: deque(maxlen=BESIDE))
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Bits per second of the last transfers."""

    def keep(self, transfer: Transfer) -> None:
        """A transfer has ended completely."""
        self.ended.append(transfer)
        self.samples.append(transfer.bits / self._alone(transfer))

    def _alone(self, transfer: Transfer) -> float:
        """Seconds that the transfer would have taken alone on the link. Concurrent transfers share it equally."""
        since, until = transfer.since, transfer.until
        others = [
            each
            for each in (*self.ended, *self.active)
            if each is not transfer and each.since < until and each.until > since
        ]
        edges = {min(max(at, since), until) for each in others for at in (each.since, each.until)}
        edges |= {since, until}
        return math.fsum(
            (last - first) / (1 + sum(each.since <= first and each.until >= last for each in others))
            for first, last in pairwise(sorted(edges))
        )

    def rate(self, now: float) -> float:
        """See `LinkMeter`."""
        found = max(self.samples) if len(self.samples) == SAMPLES else math.inf
        active = [each for each in self.active if each.carried]
        if active:
            first = min(each.since for each in active)
            carried = [*active, *(each for each in self.ended if each.until > first)]
            if now > first:
                found = min(found, sum(each.bits for each in carried) / (now - first))
        return found

    def busy(self, made: float, now: float) -> float:
        """Share of the window, since `made` at most, in which the lane was busy."""
        start = max(made, now - WINDOW_SECONDS)
        if len(self.periods) == MOST_PERIODS:
            start = max(start, self.periods[0][0])
        periods = [*self.periods, (self.since, now)] if self.active else self.periods
        busy = math.fsum(max(stop - max(since, start), 0.0) for since, stop in periods)
        return min(busy / (now - start), 1.0) if now > start else 0.0
