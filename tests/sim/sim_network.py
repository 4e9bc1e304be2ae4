"""The network in simulated time, with its faults: what is late, lost or cut off, and unequal links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from atoll_runtime.simulate import network
from atoll_runtime.transport.messages import Welcome
from atoll_runtime.transport.shardmessages import Order
from atoll_runtime.transport.transport import TransportError

if TYPE_CHECKING:
    from sim_shard import ShardProcess, ShardSlot
    from sim_unit import UnitProcess

NOTICE_SECONDS = 2.0
"""A broken session is noticed within this time, by each side."""
SLICES = 3
"""Pieces in which a body crosses a slow link: between them its sender may break off."""


class SimNetwork(network.SimNetwork):
    """A host's way to one shard, or another shard's to shard 0."""

    def __init__(self, client: UnitProcess | ShardProcess, slot: ShardSlot, distance: float = 0.0) -> None:
        super().__init__(client)
        self._client: Any = client
        self._slot, self._world, self._distance = slot, client.world, distance

    def reach(self) -> ShardProcess:
        """The process at the other end, unless it is away or the way to it is broken."""
        world, process = self._world, self._slot.process
        if process is None or process.service is None or not world.reachable(self._client.slot, self._slot):
            raise TransportError("nobody is there")
        if world.chance(world.weather.loss):
            raise TransportError("the call was lost")
        return process

    def delay(self) -> float:
        return self._world.delay() + self._distance

    def push_seconds(self) -> Iterator[float]:
        for _ in range(SLICES):
            yield self._transfer((self._world.delay() + self._client.island.link) / SLICES)

    def fetch_seconds(self) -> float:
        return self._transfer(self._client.island.link)

    def breaks(self) -> bool:
        return self._world.chance(self._world.weather.breaks)

    def lost(self) -> bool:
        return self._world.chance(self._world.weather.loss)

    def notice(self) -> float:
        return self._world.rng.random() * NOTICE_SECONDS

    def sent(self, server: Any, message: object) -> None:
        if isinstance(message, Welcome):
            self._world.checks.welcomed(server, self._client)
        if isinstance(message, Order):
            self._world.checks.announced(server, message.orders)

    def served(self, server: Any, head: Any, body: memoryview) -> None:
        self._world.checks.fetched(server, head, body)

    def _transfer(self, seconds: float) -> float:
        return self._client.island.transfer(self._world.now, seconds)
