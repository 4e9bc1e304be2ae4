"""The network in simulated time: transfers, and sessions that deliver in order until they break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.protocol.messages import Header, Hello
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.simulate.eventloop import Process, SimLoop
from atoll_runtime.syncer.service import Service
from atoll_runtime.transport.chunks import Assembly, filled
from atoll_runtime.transport.messages import FetchHead, FetchRequest, PushReply, ShardHello
from atoll_runtime.transport.transport import Peer, TransportError
from atoll_runtime.transport.wire import Down, Up, WireError

_T = TypeVar("_T")
PEER = Peer((), "simulated")
PIECES = 4
"""A contribution crosses the link in this many pieces. Between two of them its sender may break off."""


class Server(Process):
    """A process that serves a shard."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.service: Service | None = None
        """None until the server has recovered."""


class Channel:
    """One session, shared by both ends. While it is open, each has it in `at_death`."""

    def __init__(self, network: SimNetwork, server: Server) -> None:
        self.network, self.client, self.server, self.open = network, network.client, server, True
        self.downs: asyncio.Queue[Down | Exception | None] = asyncio.Queue()
        self._ups: asyncio.Queue[Up] = asyncio.Queue()
        self._loop = network.loop
        self._up_at = self._down_at = 0.0
        self._task = server.spawn(self._serve())
        self.client.at_death[self] = server.at_death[self] = self.cut

    def up(self, message: Up) -> None:
        """Sends a message from the client."""
        if self.open and not self.network.breaks():
            self._up_at = max(self._up_at, self._loop.now + self.network.delay())
            self._loop.plan(self._up_at, self.server, self._arrive_up, message)
        else:
            self.cut()

    def down(self, message: Down | None) -> None:
        """Sends a message from the shard. None ends the session."""
        if not self.open:
            return
        if self.network.breaks():
            self.cut()
            return
        self.network.sent(self.server, message)
        self._down_at = max(self._down_at, self._loop.now + self.network.delay())
        self._loop.plan(self._down_at, self.client, self._arrive_down, message)

    def cut(self) -> None:
        """Breaks the session. Messages in flight are lost."""
        if not self.open:
            return
        self.open = False
        for end in (self.client, self.server):
            end.at_death.pop(self, None)
        loop, lost = self._loop, TransportError("the session broke")
        loop.plan(loop.now + self.network.notice(), self.client, self.downs.put_nowait, lost)
        loop.plan(loop.now + self.network.notice(), self.server, self._task.cancel)

    async def _serve(self) -> None:
        endpoint = self.server.service
        assert endpoint is not None
        try:
            async for message in endpoint.session(PEER, self._incoming()):
                self.down(message)
        except TimeoutError:  # no Hello came
            self.cut()
        self.down(None)

    async def _incoming(self) -> AsyncIterator[Up]:
        while True:
            yield await self._ups.get()

    def _arrive_up(self, message: Up) -> None:
        if self.open:
            self._ups.put_nowait(message)

    def _arrive_down(self, message: Down | None) -> None:
        if self.open:
            self.downs.put_nowait(message)
            if message is None:
                self.cut()


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


class SimNetwork:
    """A host's way to one shard, or another shard's way to shard 0; see `interfaces.Network`. It loses nothing, but
    subclasses may, and may define other delays."""

    def __init__(self, client: Process, server: Server, wire: Wire) -> None:
        self.client, self.loop = client, client.loop
        self._server, self._wire = server, wire
        self.broken = 0
        """See `Network`. Always 0, because a simulated transfer has no connections."""

    def reach(self) -> Server:
        """Returns the process at the other end. Raises `TransportError`."""
        return self._server

    def delay(self) -> float:
        """Returns the latency in seconds of a message or of the first byte of a body."""
        return self._wire.delay

    def push_seconds(self, codec: str) -> Iterator[float]:
        """Yields the seconds of each piece of a body. Between two pieces its sender may break off."""
        for _ in range(PIECES):
            yield self._wire.seconds(self.loop.now, codec, PIECES)

    def fetch_seconds(self, request: FetchRequest, head: FetchHead) -> float:
        """Returns the seconds of a fetched body."""
        return self._wire.seconds(self.loop.now, head.codec)

    def breaks(self) -> bool:
        """Whether a message breaks its session."""
        return False

    def lost(self) -> bool:
        """Whether a body or an answer is lost."""
        return False

    def notice(self) -> float:
        """Returns the seconds until one end notices that a session or call broke."""
        return 0.0

    def sent(self, server: Server, message: Down | None) -> None:
        """Is called with each message of the shard when it is sent."""

    def served(self, server: Server, head: FetchHead, body: memoryview) -> None:
        """Is called with each fetched part when its transfer begins."""

    async def session(self, hello: Hello | ShardHello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        await asyncio.sleep(self.delay())
        channel = Channel(self, self.reach())
        channel.up(hello)

        async def say() -> None:
            async for message in outgoing:
                channel.up(message)

        sender = self.client.spawn(say())  # an error in it fails the simulation
        try:
            while (message := await channel.downs.get()) is not None:
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            sender.cancel()
            channel.cut()

    async def push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        await asyncio.sleep(self.delay())
        server = self.reach()
        lost = self.lost()

        async def receive(assembly: Assembly) -> None:
            for seconds in self.push_seconds(header.codec):
                await asyncio.sleep(seconds)
                if lost or not wanted():
                    raise WireError("the body broke off")
            assembly.fill(body)

        async def serve() -> PushReply:
            assert server.service is not None
            return await server.service.push(PEER, header, receive)

        return await self._call(server, serve)

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        await asyncio.sleep(self.delay())
        server = self.reach()

        async def serve() -> tuple[FetchHead, memoryview]:
            assert server.service is not None
            found = server.service.fetch(PEER, request)
            if isinstance(found, str):
                raise WireError(found)
            head, body = found
            whole = filled(body, head.size)
            self.served(server, head, whole)
            self.loop.plan(self.loop.now + self.delay(), self.client, answered)
            async with asyncio.timeout(TRANSFER_SECONDS):
                await asyncio.sleep(self.fetch_seconds(request, head))
            return head, whole

        return await self._call(server, serve)

    def tune(self, streams: int, chunk: int) -> None:
        """See `Network`. One simulated stream fills the link, so this does nothing."""

    async def close(self) -> None:
        """See `Network`."""

    async def _call(self, server: Server, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Serves a call in the process at the other end. The call breaks if that process dies or the answer is lost."""
        loop = self.loop
        answer: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | Exception) -> None:
            if not answer.done():
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)

        def broken() -> None:
            lost = TransportError("the call broke")
            loop.plan(loop.now + self.notice(), self.client, settle, lost)

        async def serve() -> None:
            result: _T | Exception
            try:
                result = await work()
            except (WireError, TimeoutError) as error:
                result = TransportError(str(error))
            server.at_death.pop(answer, None)
            if self.lost():
                broken()
            else:
                loop.plan(loop.now + self.delay(), self.client, settle, result)

        server.at_death[answer] = broken
        server.spawn(serve())
        return await answer
