"""A unit's link to the syncer in simulated time: how fast it is, and when it carries nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.simulate.network import Party, Server, SimNetwork
from atoll_runtime.transport.messages import FetchHead, FetchRequest

PIECES = 4
"""In which a contribution crosses the link: between two of them its sender may break off."""


@dataclass(frozen=True)
class Wire:
    """Both directions carry as much at the same time."""

    push: float
    """Seconds of a contribution in `codec`; one in another takes as much more or less as it has bits."""
    fetch: float
    """The same of a version."""
    delay: float = 0.0
    """Seconds that a message or the first byte of a body is under way."""
    outages: tuple[tuple[float, float], ...] = ()
    """From when until when it carries nothing, in seconds since the run began, in order and apart."""
    codec: str = "float32"

    def scale(self, codec: str) -> float:
        """Bits of an element in `codec`, for each bit of one in the wire's."""
        return BITS[codec] / BITS[self.codec]

    def seconds(self, begun: float, seconds: float) -> float:
        """How long a body takes that needs so many seconds of the link; an outage only holds it up."""
        end = begun + seconds
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
            yield self._wire.seconds(self.loop.now, self._wire.scale(codec) * self._wire.push / PIECES)

    def fetch_seconds(self, request: FetchRequest, head: FetchHead) -> float:
        return self._wire.seconds(self.loop.now, self._wire.scale(head.codec) * self._wire.fetch)
