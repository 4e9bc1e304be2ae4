"""Sessions over gRPC: what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atoll_runtime.contract import SyncerAddress
from atoll_runtime.protocol.identifiers import NO_CUT
from atoll_runtime.transport.grpc_client import GrpcNetwork
from atoll_runtime.transport.grpc_server import GrpcServer
from atoll_runtime.transport.messages import Hello, Mark, Stop
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, TransportError
from atoll_runtime.transport.wire import Down, Up

HELLO = Hello(1, "uid", "a", 1, 0, 1, "f", "bf16", (0,), 0, "")


class Speaker:
    """An endpoint with sessions alone."""

    async def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        async for message in incoming:
            yield Stop(1)
            if isinstance(message, Mark):
                return


async def test_what_a_closed_channel_breaks_off_is_worth_another_attempt(authority: Any) -> None:
    """Not the end of the task that waits for it, as if that were cancelled."""
    ca = authority("r")
    server = GrpcServer(Speaker(), Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    network = GrpcNetwork(
        SyncerAddress(host="localhost", port=server.port), Tls.read(ca.issue("a", "spiffe://a"))
    )
    quiet = asyncio.Event()

    async def outgoing() -> AsyncIterator[Up]:
        await quiet.wait()
        yield Mark(NO_CUT, 0)

    session: Any = network.session(HELLO, outgoing())
    assert await anext(session) == Stop(1)
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
    server = GrpcServer(Speaker(), Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    network = GrpcNetwork(
        SyncerAddress(host="localhost", port=server.port), Tls.read(ca.issue("a", "spiffe://a"))
    )
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
