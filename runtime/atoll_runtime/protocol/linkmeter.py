"""What a host's link to the syncer does, as its transfers show it. Pure: times are passed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

WINDOW_SECONDS = 300.0
"""Extremes and the busy share are of so many last seconds."""
MOST_PERIODS = 1024
"""Busy periods that are remembered: the busy share is of less time where they are shorter."""

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class LinkReading:
    """A host's link to all shards together."""

    up_gbps: float = 0.0
    """The largest rate of the window in Gbit/s, from the host to the syncer; 0 where nothing was sent."""
    down_gbps: float = 0.0
    """The same from the syncer to the host."""
    rtt_seconds: float = 0.0
    """The shortest time between a request and the first byte of its answer; 0 where nothing was fetched."""
    busy_share: float = 0.0
    """Of the time, in which transfers were under way; of the direction in which that is more."""
    failures: int = 0
    """Transfers and sessions that broke since the link was made."""


class LinkMeter:
    """Takes the beginning and the end of each transfer. Those of several shards share the link, so a rate is that of
    all transfers that run beside each other."""

    def __init__(self, now: float) -> None:
        self._made, self._failures = now, 0
        self._lanes: dict[Direction, _Lane] = {"up": _Lane(), "down": _Lane()}
        self._rtt = _Largest()  # of its negative

    def began(self, direction: Direction, now: float) -> None:
        """A transfer."""
        lane = self._lanes[direction]
        if not lane.active:
            lane.since, lane.size = now, 0
        lane.active += 1

    def ended(self, direction: Direction, now: float, size: int) -> None:
        """A transfer of so many bytes; 0 where it is not known how many have come."""
        lane = self._lanes[direction]
        lane.active -= 1
        lane.size += size
        seconds = now - lane.since
        if size and seconds > 0:
            lane.rates.add(now, lane.size * 8e-9 / seconds)
        if not lane.active:
            lane.periods.append((lane.since, now))

    def answered(self, seconds: float, now: float) -> None:
        """The first byte of an answer came so long after its request."""
        self._rtt.add(now, -seconds)

    def round_trip(self, now: float) -> float:
        """The shortest of the window; 0 where it has none."""
        return -self._rtt.value(now)

    def failed(self) -> None:
        """A transfer or a session broke."""
        self._failures += 1

    def reading(self, now: float) -> LinkReading:
        """What the window shows."""
        up, down = self._lanes["up"], self._lanes["down"]
        return LinkReading(
            up.rates.value(now),
            down.rates.value(now),
            self.round_trip(now),
            max(lane.busy(self._made, now) for lane in (up, down)),
            self._failures,
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

    active: int = 0
    """Transfers under way."""
    since: float = 0.0
    """When the busy period began."""
    size: int = 0
    """Bytes of transfers that have ended in it."""
    rates: _Largest = field(default_factory=_Largest)
    periods: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_PERIODS))
    """Ended busy periods of the window."""

    def busy(self, made: float, now: float) -> float:
        start = max(made, now - WINDOW_SECONDS)
        if len(self.periods) == MOST_PERIODS:
            start = max(start, self.periods[0][0])
        while self.periods and self.periods[0][1] < start:
            self.periods.popleft()
        periods = [*self.periods, *([(self.since, now)] if self.active else [])]
        busy = sum(stop - max(since, start) for since, stop in periods)
        return min(busy / (now - start), 1.0) if now > start else 0.0
