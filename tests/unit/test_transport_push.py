"""A part on its way: what ends it before it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from atoll_runtime.protocol.events import Part
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.transport.chunks import CHUNK, Assembly
from atoll_runtime.transport.grpc_client import GrpcNetwork
from atoll_runtime.transport.grpc_server import GrpcServer
from atoll_runtime.transport.messages import FetchHead, FetchRequest, Header, Hello, Mark, PushReply, Stop
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, TransportError
from atoll_runtime.transport.wire import Down, Up, WireError

CHUNKS = 4
HEADER = Header(Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 0, 0, 0, 1, 1, 8), "bf16", CHUNKS * CHUNK)
HELLO = Hello(1, "uid", "a", 1, 0, 1, "f", "bf16", (0,), 0, "")


class Taker:
    """An endpoint that takes what comes whole."""

    def __init__(self) -> None:
        self.sizes: list[int | None] = []

    async def push(self, peer: Peer, header: Header, body: AsyncIterator[bytes]) -> PushReply:
        assembly = Assembly(header.size)
        try:
            async for data in body:
                assembly.add(data)
            if not assembly.whole:
                raise WireError(f"the body ended after {assembly.filled} bytes")
        finally:
            self.sizes.append(assembly.filled if assembly.whole else None)
        return PushReply(True)

    async def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        async for message in incoming:
            yield Stop(1)
            if isinstance(message, Mark):
                return

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        return FetchHead(0, 1, CHUNK + 1, "bf16"), memoryview(bytes(CHUNK))


async def test_a_part_that_is_not_wanted_any_more_is_broken_off_and_gives_its_place_back(
    authority: Any,
) -> None:
    ca, taker = authority("r"), Taker()
    server = GrpcServer(taker, Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    network = GrpcNetwork("localhost", server.port, Tls.read(ca.issue("a", "spiffe://a")))
    body, asked = memoryview(bytes(CHUNKS * CHUNK)), count(1)
    with pytest.raises(TransportError, match="ended after"):
        await network.push(HEADER, body, lambda: next(asked) < CHUNKS)
    while not taker.sizes:  # the answer may be here before the server is done with the call
        await asyncio.sleep(0.01)
    assert next(asked) == CHUNKS + 1 and taker.sizes == [None]
    reply = await network.push(HEADER, body, lambda: True)
    assert reply.accepted and taker.sizes == [None, len(body)]
    await network.close()
    await server.stop(0)


async def test_what_a_closed_channel_breaks_off_is_worth_another_attempt(authority: Any) -> None:
    """Not the end of the task that waits for it, as if that were cancelled."""
    ca = authority("r")
    server = GrpcServer(Taker(), Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    network = GrpcNetwork("localhost", server.port, Tls.read(ca.issue("a", "spiffe://a")))
    quiet = asyncio.Event()

    async def outgoing() -> AsyncIterator[Up]:
        await quiet.wait()
        yield Mark(NO_CUT, 0)

    session: Any = network.session(HELLO, outgoing())
    assert await anext(session) == Stop(1)
    head, body = await network.fetch(FetchRequest("a", 1, 0, 1, 0, 1, "bf16"), lambda: None)
    assert (head.version, bytes(body)) == (1, bytes(CHUNK + 1))
    waiting = asyncio.ensure_future(anext(session))
    await asyncio.sleep(0)
    await network.close()
    with pytest.raises(TransportError, match="the channel was closed"):
        await waiting
    await server.stop(0)


async def test_a_session_that_the_shard_has_ended_takes_nothing_that_the_next_one_is_to_send(
    authority: Any,
) -> None:
    ca = authority("r")
    server = GrpcServer(Taker(), Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    network = GrpcNetwork("localhost", server.port, Tls.read(ca.issue("a", "spiffe://a")))
    waiting: asyncio.Queue[Up] = asyncio.Queue()

    async def outgoing() -> AsyncIterator[Up]:
        while True:
            yield await waiting.get()

    for _ in range(3):
        waiting.put_nowait(Mark(NO_CUT, 0))
        session = network.session(HELLO, outgoing())
        assert [message async for message in session] == [Stop(1), Stop(1)]  # type: ignore[attr-defined]
    waiting.put_nowait(Mark(NO_CUT, 1))
    await asyncio.sleep(0.01)
    assert waiting.qsize() == 1
    await network.close()
    await server.stop(0)
