"""The network in simulated time: sessions, first in, first out until they break, and transfers over unequal links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from atoll_runtime.transport.chunks import filled, split
from atoll_runtime.transport.messages import (
    Down,
    FetchHead,
    FetchRequest,
    Hello,
    PushHead,
    PushReply,
    Up,
    Welcome,
    WireError,
)
from atoll_runtime.transport.transport import Peer, TransportError

if TYPE_CHECKING:
    from sim_shard import ShardProcess, ShardSlot
    from sim_unit import UnitProcess

PEER = Peer((), "simulated")
NOTICE_SECONDS = 2.0
"""A broken session is noticed within this time, by each side."""
SLICES = 3
"""Pieces in which a body crosses a slow link: between them its sender may break off."""


class Channel:
    """One session, as both ends hold it."""

    def __init__(self, unit: UnitProcess, process: ShardProcess) -> None:
        self.unit, self.process, self.open = unit, process, True
        self.downs: asyncio.Queue[Down | Exception | None] = asyncio.Queue()
        self._ups: asyncio.Queue[Up | None] = asyncio.Queue()
        self._world = unit.world
        self._up_at = self._down_at = 0.0
        self._task = process.spawn(self._serve())
        unit.channels[self] = process.channels[self] = None
        unit.at_death[self] = process.at_death[self] = self.cut

    def up(self, message: Up) -> None:
        """The host says something."""
        world = self._world
        if self.open and not world.chance(world.weather.breaks):
            self._up_at = max(self._up_at, world.now + world.delay())
            world.at_time(self._up_at, self.process, self._arrive_up, message)
        else:
            self.cut()

    def down(self, message: Down | None) -> None:
        """The shard says something; None ends the session."""
        world = self._world
        if not self.open:
            return
        if world.chance(world.weather.breaks):
            self.cut()
            return
        if isinstance(message, Welcome):
            world.checks.welcomed(self.process, self.unit)
        self._down_at = max(self._down_at, world.now + world.delay())
        world.at_time(self._down_at, self.unit, self._arrive_down, message)

    def cut(self) -> None:
        """The wire breaks: what is under way on it is lost."""
        if not self.open:
            return
        self.open = False
        for ends in (self.unit, self.process):
            ends.channels.pop(self, None)
            ends.at_death.pop(self, None)
        world = self._world
        lost = TransportError("the session broke")
        world.at(world.rng.random() * NOTICE_SECONDS, self.unit, self.downs.put_nowait, lost)
        world.at(world.rng.random() * NOTICE_SECONDS, self.process, self._task.cancel)

    async def _serve(self) -> None:
        endpoint = self.process.service
        assert endpoint is not None
        try:
            async for message in endpoint.session(PEER, self._incoming()):
                self.down(message)
        except TimeoutError:  # no Hello came
            self.cut()
        self.down(None)

    async def _incoming(self) -> AsyncIterator[Up]:
        while (message := await self._ups.get()) is not None:
            yield message

    def _arrive_up(self, message: Up) -> None:
        if self.open:
            self._ups.put_nowait(message)

    def _arrive_down(self, message: Down | None) -> None:
        if self.open:
            self.downs.put_nowait(message)
            if message is None:
                self.cut()


class SimNetwork:
    """A host's way to one shard: see `interfaces.Network`."""

    def __init__(self, unit: UnitProcess, slot: ShardSlot) -> None:
        self._unit, self._slot, self._world = unit, slot, unit.world

    async def session(self, hello: Hello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """See `Network`."""
        await asyncio.sleep(self._world.delay())
        channel = Channel(self._unit, self._reach())
        channel.up(hello)

        async def say() -> None:
            async for message in outgoing:
                channel.up(message)

        sender = asyncio.get_running_loop().create_task(say())
        try:
            while (message := await channel.downs.get()) is not None:
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            sender.cancel()
            channel.cut()

    async def push(self, head: PushHead, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """See `Network`."""
        world = self._world
        await asyncio.sleep(world.delay())
        process = self._reach()
        breaks = world.chance(world.weather.loss)

        async def stream() -> AsyncIterator[bytes]:
            for _ in range(SLICES):
                await asyncio.sleep(self._transfer((world.delay() + self._unit.island.link) / SLICES))
                if breaks or not wanted():
                    return
            for chunk in split(body):
                yield chunk

        return await self._call(process, lambda: process.take(head, stream()))

    async def fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """See `Network`."""
        world = self._world
        await asyncio.sleep(world.delay())
        process = self._reach()

        async def serve() -> tuple[FetchHead, memoryview]:
            found = process.service.fetch(PEER, request)
            if isinstance(found, str):
                raise WireError(found)
            head, body = found
            whole = filled(body, head.size)
            world.checks.fetched(process, head, whole)
            await asyncio.sleep(self._transfer(self._unit.island.link))
            return head, whole

        return await self._call(process, serve)

    def close(self) -> None:
        """See `Network`."""

    def _transfer(self, seconds: float) -> float:
        return self._unit.island.transfer(self._world.now, seconds)

    def _reach(self) -> ShardProcess:
        """The process at the other end, unless it is away or the way to it is broken."""
        world, process = self._world, self._slot.process
        if process is None or process.service is None or not world.reachable(self._unit.slot, self._slot):
            raise TransportError("nobody is there")
        if world.chance(world.weather.loss):
            raise TransportError("the call was lost")
        return process

    async def _call(self, process: ShardProcess, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Has the shard do something; its answer may be lost on the way, and it may die before."""
        world, answer = self._world, asyncio.get_running_loop().create_future()

        def settle(result: Any) -> None:
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def lost() -> None:
            world.at(
                world.rng.random() * NOTICE_SECONDS, self._unit, settle, TransportError("the call broke")
            )

        async def serve() -> None:
            try:
                result = await work()
            except (WireError, TimeoutError) as error:
                result = TransportError(str(error))
            process.at_death.pop(answer, None)
            if world.chance(world.weather.loss):
                lost()
            else:
                world.at(world.delay(), self._unit, settle, result)

        process.at_death[answer] = lost
        process.spawn(serve())
        return await answer
