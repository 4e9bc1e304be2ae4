"""What a host's link to the syncer does, as its transfers show it. Pure: times are passed in."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from atoll_runtime.protocol.identifiers import Count, Figure

WINDOW_SECONDS = 300.0
"""Extremes and the busy share are of so many last seconds."""
MOST_PERIODS = 1024
"""Busy periods that are remembered: the busy share is of less time where they are shorter."""
SAMPLES = 3
"""Transfers by the best of which a direction is judged: so many slow ones are believed, a fast one at once."""
BESIDE = 32
"""Ended transfers of which it is remembered when they were under way."""
LEAST_SECONDS = 1e-3
"""Of a transfer whose answer came as soon as a round trip allows."""

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class LinkUse:
    """What a link is used for; the names of `LinkReport`."""

    codec: Annotated[str, Meta(pattern="^(|float32|bf16|int8|int4)$")] = ""
    streams: Count = 0
    chunk_kib: Count = 0
    period: Figure = 0.0
    """It takes part in one of so many rounds of each fragment."""
    load: Figure = 0.0
    """Share of an interval that the transfers of every round take."""
    reason: Annotated[str, Meta(max_length=256)] = ""
    advice: Annotated[str, Meta(max_length=256)] = ""
    fetch: Annotated[str, Meta(pattern="^(|float32|bf16|int8|int4)$")] = ""
    """Codec of versions."""

    @property
    def told(self) -> dict[str, str | float]:
        """What is chosen: a change of it is noted, with the reason."""
        return {name: getattr(self, name) for name in ("codec", "fetch", "streams", "chunk_kib", "period")}


@dataclass(frozen=True)
class LinkReading:
    """A host's link to all shards together."""

    up_gbps: Figure = 0.0
    """The largest rate of the window in Gbit/s, from the host to the syncer; 0 where nothing was sent."""
    down_gbps: Figure = 0.0
    """The same from the syncer to the host."""
    rtt_seconds: Figure = 0.0
    """The shortest time between a request and the first byte of its answer; 0 where nothing was fetched."""
    busy_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Of the time, in which transfers were under way; of the direction in which that is more."""
    failures: Count = 0
    """Sessions, transfers and connections of transfers that broke since the link was made."""
    use: LinkUse = LinkUse()


@dataclass(eq=False)
class Transfer:
    """One that is under way, or has ended."""

    direction: Direction
    since: float
    """When the link began to carry it, as far as is known."""
    bits: float
    until: float = math.inf
    carried: bool = True
    """False while a fetch waits for the first byte: it shows how long the shard takes, not what the link carries."""


class LinkMeter:
    """Takes the beginning and the end of each transfer. Those of several shards share the link, so a rate is that of
    all transfers that run beside each other."""

    def __init__(self, now: float) -> None:
        self._made, self._failures = now, 0
        self._lanes: dict[Direction, _Lane] = {"up": _Lane(), "down": _Lane()}
        self._rtt = _Largest()  # of its negative

    def began(self, direction: Direction, now: float, bits: float) -> Transfer:
        """A transfer of so many bits at most."""
        lane = self._lanes[direction]
        transfer = Transfer(direction, now, bits, carried=direction == "up")
        if not lane.active:
            lane.since, lane.bits = now, 0.0
        lane.active.append(transfer)
        return transfer

    def ended(self, transfer: Transfer, now: float, bits: float) -> None:
        """It had so many bits; 0 where it is not known how many have come."""
        lane = self._lanes[transfer.direction]
        lane.active.remove(transfer)
        lane.bits += bits
        seconds = now - lane.since
        if bits and seconds > 0:
            lane.rates.add(now, lane.bits * 1e-9 / seconds)
            # An answer is under way to the sender when the link is free again.
            answer = self.round_trip(now) if transfer.direction == "up" else 0.0
            transfer.bits, transfer.until = bits, max(now - answer, transfer.since + LEAST_SECONDS)
            lane.keep(transfer)
        if not lane.active:
            lane.rest(now)

    def answered(self, transfer: Transfer, seconds: float, now: float) -> None:
        """The first byte of an answer came so long after its request."""
        transfer.since, transfer.carried = now, True
        self.welcomed(seconds, now)

    def welcomed(self, seconds: float, now: float) -> None:
        """An answer came so long after what it answers: no round trip takes longer."""
        self._rtt.add(now, -seconds)

    def round_trip(self, now: float) -> float:
        """The shortest of the window; 0 where it has none."""
        return -self._rtt.value(now)

    def rate(self, direction: Direction, now: float) -> float:
        """Bits per second as of late: the best of the last transfers, and no more than those under way show; infinite
        while there are too few."""
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
    """The largest value of the window. Values that a later one exceeds are forgotten, so those kept only fall."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now, value))

    def value(self, now: float) -> float:
        """0 where the window has none."""
        while self._values and self._values[0][0] < now - WINDOW_SECONDS:
            self._values.popleft()
        return self._values[0][1] if self._values else 0.0


@dataclass
class _Lane:
    """One direction."""

    active: list[Transfer] = field(default_factory=list)
    """Under way."""
    since: float = 0.0
    """When the busy period began."""
    bits: float = 0.0
    """Of transfers that have ended in it."""
    rates: _Largest = field(default_factory=_Largest)
    periods: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=MOST_PERIODS))
    """Ended busy periods of the window, and how long it was busy up to the end of each."""
    total: float = 0.0
    """Seconds of all busy periods that have ended."""
    ended: deque[Transfer] = field(default_factory=lambda: deque(maxlen=BESIDE))
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Bits per second of the last transfers."""

    def keep(self, transfer: Transfer) -> None:
        """A transfer has ended whole."""
        self.ended.append(transfer)
        self.samples.append(transfer.bits / self._alone(transfer))

    def _alone(self, transfer: Transfer) -> float:
        """Seconds that it would have taken if the link had carried it alone: those beside it have equal shares."""
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

    def rest(self, now: float) -> None:
        """A busy period has ended."""
        self.total += now - self.since
        self.periods.append((self.since, now, self.total))

    def busy(self, made: float, now: float) -> float:
        start = max(made, now - WINDOW_SECONDS)
        if len(self.periods) == MOST_PERIODS:
            start = max(start, self.periods[0][0])
        while self.periods and self.periods[0][1] < start:
            self.periods.popleft()
        busy = now - max(self.since, start) if self.active else 0.0
        if self.periods:
            since, stop, total = self.periods[0]
            busy += stop - max(since, start) + self.total - total
        return min(busy / (now - start), 1.0) if now > start else 0.0
