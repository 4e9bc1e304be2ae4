"""A unit's link to the syncer in simulated time: how fast it is, and when it carries nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.simulate.network import Party, Server, SimNetwork
from atoll_runtime.transport.messages import FetchHead, FetchRequest

PIECES = 4
"""A contribution crosses the link in this many pieces. Between two of them its sender may break off."""


@dataclass(frozen=True)
class Wire:
    """A link with the same capacity in both directions, which are independent."""

    body: float
    """Seconds of a contribution or a version in `codec`. In another codec they scale with the bits of an element."""
    delay: float = 0.0
    """Latency in seconds of a message or of the first byte of a body."""
    outages: tuple[tuple[float, float], ...] = ()
    """Begin and end of each time without transfers, in seconds since the run began. Ascending and disjoint."""
    codec: str = "float32"

    def seconds(self, begun: float, codec: str, pieces: int = 1) -> float:
        """Returns how long one of `pieces` of a body in `codec` takes. An outage delays it and does not break it."""
        end = begun + BITS[codec] / BITS[self.codec] * self.body / pieces
        for first, last in self.outages:
            if first < end and last > begun:
                end += last - max(first, begun)
        return end - begun


class Link(SimNetwork):
    """See `interfaces.Network`."""

    def __init__(self, client: Party, server: Server, wire: Wire) -> None:
        super().__init__(client)
        self._server, self._wire = server, wire

    def reach(self) -> Server:
        return self._server

    def delay(self) -> float:
        return self._wire.delay

    def push_seconds(self, codec: str) -> Iterator[float]:
        for _ in range(PIECES):
            yield self._wire.seconds(self.loop.now, codec, PIECES)

    def fetch_seconds(self, request: FetchRequest, head: FetchHead) -> float:
        return self._wire.seconds(self.loop.now, head.codec)
