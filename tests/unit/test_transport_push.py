"""A part on its way: what ends it before it is there."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from atoll_runtime.sync.events import RoundId
from atoll_runtime.transport.chunks import CHUNK
from atoll_runtime.transport.grpc_client import GrpcTransport
from atoll_runtime.transport.grpc_server import GrpcServer
from atoll_runtime.transport.messages import PushHead, PushReply
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, TransportError

CHUNKS = 4
HEAD = PushHead("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 0, 0, 0, 1, 1, 8, "bf16", CHUNKS * CHUNK)


class Taker:
    """An endpoint that takes what comes whole."""

    def __init__(self) -> None:
        self.sizes: list[int | None] = []

    def admit(self, peer: Peer, head: PushHead) -> str:
        return ""

    async def deliver(self, peer: Peer, head: PushHead, body: memoryview | None) -> PushReply:
        self.sizes.append(None if body is None else len(body))
        return PushReply(body is not None)


async def test_a_part_that_is_not_wanted_any_more_is_broken_off_and_gives_its_place_back(
    authority: Any,
) -> None:
    ca, taker = authority("r"), Taker()
    server = GrpcServer(taker, Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    transport = GrpcTransport("localhost", server.port, Tls.read(ca.issue("a", "spiffe://a")))
    body, asked = memoryview(bytes(CHUNKS * CHUNK)), count(1)
    with pytest.raises(TransportError, match="ended after"):
        await asyncio.to_thread(transport.push, HEAD, body, lambda: next(asked) < CHUNKS)
    while not taker.sizes:  # the answer may be here before the server is done with the call
        await asyncio.sleep(0.01)
    assert next(asked) == CHUNKS + 1 and taker.sizes == [None]
    reply = await asyncio.to_thread(transport.push, HEAD, body, lambda: True)
    assert reply.accepted and taker.sizes == [None, len(body)]
    await asyncio.to_thread(transport.close)
    await server.stop(0)
