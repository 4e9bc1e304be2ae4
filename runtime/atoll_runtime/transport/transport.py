"""What the syncer offers to whoever a network brings to it. The other end of the network is `interfaces.Network`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    FetchHead,
    FetchRequest,
    Header,
    PushReply,
)
from atoll_runtime.transport.wire import Down, Up


class TransportError(Exception):
    """The syncer was not reached, or the link broke; worth another try later. The message says why."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as its certificate says."""

    identities: tuple[str, ...]
    """URI names of the certificate; empty in process, where there is nothing to check."""
    address: str

    def may_be(self, identity: str) -> bool:
        return not self.identities or identity in self.identities


class Endpoint(Protocol):
    """Syncer side: what a server of any transport calls, on the syncer's event loop."""

    def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """Serves one host, or another shard at shard 0, until either side ends."""

    async def push(self, peer: Peer, header: Header, body: AsyncIterator[bytes]) -> PushReply:
        """Takes a part, whose chunks `body` gives, unless it is not wanted.

        Raises:
            WireError: the body did not arrive whole.
            TimeoutError: it took too long, or its sender has begun it anew.
        """

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview] | str:
        """The encoded part, or why there is none. The body may be shorter than it says: zeros follow it."""

    def directory(self, peer: Peer, request: DirectoryRequest) -> DirectoryReply | str:
        """Units to seed from, or why the peer may not ask."""
