"""The network in simulated time, with faults (delays, losses, cut-off parties) and unequal links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.protocol.messages import Orders
from atoll_runtime.simulate import network
from atoll_runtime.transport.messages import FetchHead, FetchRequest, Marker, Stop, Welcome
from atoll_runtime.transport.transport import TransportError

if TYPE_CHECKING:
    from sim_scenario import Island
    from sim_shard import ShardProcess, ShardSlot
    from sim_unit import UnitProcess

NOTICE_SECONDS = 2.0
"""Each side notices a broken session within this time."""
SLICES = 3
"""Pieces in which a body crosses a slow link. Its sender may stop between them."""


class SimNetwork(network.SimNetwork):
    """The network from a host to one shard, or from another shard to shard 0."""

    def __init__(
        self,
        client: UnitProcess | ShardProcess,
        slot: ShardSlot,
        island: Island | None = None,
        line: dict[str, float] | None = None,
    ) -> None:
        """`line`: until when the host's link is taken in each direction, if the transfers to all shards share it."""
        super().__init__(client, slot, network.Wire(0.0))
        self._client: Any = client
        self._slot, self._world, self._island, self._line = slot, client.world, island, line

    def reach(self) -> ShardProcess:
        """The process at the other end. Raises `TransportError` if it is down or not reachable."""
        world, process = self._world, self._slot.process
        if process is None or process.service is None or not world.reachable(self._client.slot, self._slot):
            raise TransportError("nobody is there")
        if world.chance(world.weather.loss):
            raise TransportError("the call was lost")
        return process

    def delay(self) -> float:
        return self._world.delay() + (
            self._island.delay(self._world.now) if self._island is not None else 0.0
        )

    def push_seconds(self, codec: str) -> Iterator[float]:
        for _ in range(SLICES):
            yield self._transfer((self._world.delay() + self._link(codec)) / SLICES, "up")

    def fetch_seconds(self, request: FetchRequest, head: FetchHead) -> float:
        """Seconds as if the version came in the requested codec. Symbolic values themselves are not narrowed."""
        return self._transfer(self._link(request.codec), "down")

    def breaks(self) -> bool:
        return self._world.chance(self._world.weather.breaks)

    def lost(self) -> bool:
        return self._world.chance(self._world.weather.loss)

    def notice(self) -> float:
        return self._world.rng.random() * NOTICE_SECONDS

    def sent(self, server: Any, message: object) -> None:
        if isinstance(message, Welcome):
            self._world.checks.welcomed(server, self._client)
        if isinstance(message, Welcome | Marker | Stop):
            self._world.checks.told(server, message)
        if isinstance(message, Orders):
            self._world.checks.announced(server, message)

    def served(self, server: Any, head: Any, body: memoryview) -> None:
        self._world.checks.fetched(server, head, body)

    def _link(self, codec: str) -> float:
        assert self._island is not None, "shards transfer no fragments to each other"
        return self._island.link * BITS[codec] / BITS["float32"]

    def _transfer(self, seconds: float, direction: str) -> float:
        assert self._island is not None
        now = self._world.now
        if self._line is None:
            return self._island.transfer(now, seconds, direction)
        begun = max(now, self._line.get(direction, now))
        self._line[direction] = begun + self._island.transfer(begun, seconds, direction)
        return self._line[direction] - now
