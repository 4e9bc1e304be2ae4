"""What the syncer offers to the peers of a network. The other end of the network is `interfaces.Network`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from atoll_runtime.protocol.messages import Header
from atoll_runtime.transport.chunks import Assembly
from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    FetchHead,
    FetchRequest,
    PushReply,
)
from atoll_runtime.transport.wire import Down, Up

Receive = Callable[[Assembly], Awaitable[None]]
"""Returns when the body is whole. Raises `WireError` if no more of it comes."""


class TransportError(Exception):
    """The syncer was not reached, or the link broke. A later attempt may succeed. The message says why."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as its certificate says."""

    identities: tuple[str, ...]
    """URI names of the certificate; empty within one process, where there is nothing to check."""
    address: str

    def may_be(self, identity: str) -> bool:
        return not self.identities or identity in self.identities


class Endpoint(Protocol):
    """The syncer's side: methods that a server of any transport calls, on the syncer's event loop."""

    def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """Serves one host, or another shard at shard 0, until either side ends."""

    async def push(self, peer: Peer, header: Header, receive: Receive) -> PushReply:
        """Takes a part if it is wanted. `receive` is then called once, with the memory for its body.

        Raises:
            WireError: the body did not arrive whole. The received chunks are kept for another attempt.
            TimeoutError: it took too long, or its sender has begun again.
        """

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview] | str:
        """The encoded part, or why there is none. The body may be shorter than the head says; the rest is zeros."""

    def directory(self, peer: Peer, request: DirectoryRequest) -> DirectoryReply | str:
        """Units to seed from, or why the peer may not ask."""
