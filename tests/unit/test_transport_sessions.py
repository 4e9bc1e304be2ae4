"""Sessions: what ends one over real sockets, and which bytes are no message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from atoll_runtime.contract import SyncerAddress
from atoll_runtime.protocol.identifiers import NO_CUT
from atoll_runtime.protocol.messages import Hello, Mark
from atoll_runtime.transport.messages import Announce, Stop
from atoll_runtime.transport.sessions import SessionServer, TlsNetwork
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer
from atoll_runtime.transport.wire import Down, Up, WireError, decode, encode

HELLO = Hello(1, "uid", "a", 1, 0, 1, "f", "bf16", (0,), 0, "")


class Speaker:
    """An endpoint that has only sessions."""

    async def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        async for message in incoming:
            yield Stop(1)
            if isinstance(message, Mark):
                return


async def test_a_session_that_the_shard_has_ended_takes_nothing_that_the_next_one_is_to_send(
    authority: Any,
) -> None:
    ca = authority("r")
    server = SessionServer(Speaker(), Tls.read(ca.issue("syncer", "spiffe://syncer")), 0)  # type: ignore[arg-type]
    await server.start()
    network = TlsNetwork(
        SyncerAddress(host="localhost", port=server.port, transfer_port=1),
        Tls.read(ca.issue("a", "spiffe://a")),
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
    await server.stop()


@pytest.mark.parametrize("data", [b"", b"\x80", b"junk", encode(Announce(1, 2, True))[:-1]])
def test_other_bytes_are_not_a_message(data: bytes) -> None:
    with pytest.raises(WireError, match="not a message of protocol"):
        decode(data)
