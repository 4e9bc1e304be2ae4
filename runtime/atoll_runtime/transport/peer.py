"""Between learners: one call that streams a host's part of every fragment. gRPC with threads and mTLS."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import MOST_PADDING
from atoll_runtime.transport import grpc_client, grpc_server
from atoll_runtime.transport.chunks import Assembly, split
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, TransportError
from atoll_runtime.transport.wire import WireError

SERVICE = "atoll.v1.Learner"
THREADS = 4
"""For streams that are served, and for calls that are declined."""
ARRAYS = 3
"""Anchor, mu, nu."""

log = logging.getLogger(__name__)


class Declined(TransportError):
    """A peer answered that it does not serve now; it may later."""


class SnapshotRequest(msgspec.Struct, frozen=True):
    """Asks for every fragment of a unit, each at version `least` or newer."""

    unit: str
    """The unit that asks."""
    incarnation: int
    fingerprint: str
    shards: int
    least: tuple[int, ...]


class SnapshotHead(msgspec.Struct, frozen=True):
    """One host's part [start, stop) of a fragment; its anchor, mu and nu follow, float32."""

    number: int
    version: int
    count: int
    """Updates that the moments have seen."""
    start: int
    stop: int


Parts = tuple[NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A received part."""

    head: SnapshotHead
    anchor: NDArray[np.float32]
    mu: NDArray[np.float32]
    nu: NDArray[np.float32]


class Stream(Protocol):
    """What a host sends to one client."""

    def __iter__(self) -> Iterator[tuple[SnapshotHead, Parts]]:
        """Yields heads with anchor, mu and nu."""

    def close(self) -> None:
        """Ends the iterator when the client is gone. Callable from any thread."""


class Source(Protocol):
    """Provides snapshots to serve."""

    def open(self, peer: Peer, request: SnapshotRequest) -> Stream | str:
        """Returns a stream for this client, or the reason to decline. Called from any thread."""


class PeerServer:
    """Serves one host's snapshots. Raises `OSError` when the port is taken."""

    def __init__(self, source: Source, tls: Tls, port: int) -> None:
        self._source = source
        self._threads = ThreadPoolExecutor(THREADS, "peers")
        self._server = grpc.server(self._threads, options=grpc_server.OPTIONS)
        handlers = {"Snapshot": grpc.unary_stream_rpc_method_handler(self._snapshot)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self.port: int = self._server.add_secure_port(f"[::]:{port}", tls.server())
        except RuntimeError as error:
            raise OSError(f"port {port} cannot be listened on: {error}") from error
        self._server.start()
        log.info("serving snapshots on port %d", self.port)

    def close(self, grace: float) -> None:
        """Ends all streams after `grace` seconds at most."""
        self._server.stop(grace).wait(grace + 1.0)
        self._threads.shutdown(wait=False)

    def _snapshot(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            request = msgspec.msgpack.decode(data, type=SnapshotRequest)
        except msgspec.DecodeError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a SnapshotRequest: {error}")
        names = context.auth_context().get("x509_subject_alternative_name", ())
        stream = self._source.open(
            Peer(tuple(name.decode() for name in names) or ("",), context.peer()), request
        )
        if isinstance(stream, str):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, stream)
        assert not isinstance(stream, str)
        try:
            if not context.add_callback(stream.close):
                return  # the client has gone already
            for head, parts in stream:
                yield msgspec.msgpack.encode(head)
                for part in parts:
                    yield from split(memoryview(np.ascontiguousarray(part).view(np.uint8).data))
        finally:
            stream.close()


class PeerClient:
    """A channel to one host of another unit; `name` is the unit's, which its certificate must show."""

    def __init__(self, address: str, tls: Tls, name: str) -> None:
        self._address = address
        options = (*grpc_client.OPTIONS, ("grpc.ssl_target_name_override", name))
        self._channel = grpc.secure_channel(address, tls.client(), options)
        self._snapshot = self._channel.unary_stream(f"/{SERVICE}/Snapshot")

    def snapshot(self, request: SnapshotRequest, sizes: tuple[int, ...], seconds: float) -> Iterator[Piece]:
        """Yields the host's parts as they come, until `close` or until `seconds` have passed.

        Args:
            sizes: elements of each fragment.

        Raises:
            Declined: the host does not serve now.
            TransportError: the stream broke, was damaged, or took too long.
        """
        call = self._snapshot(msgspec.msgpack.encode(request), timeout=seconds)
        try:
            for data in call:
                head = _head(data, sizes)
                yield Piece(head, *(_array(call, head.stop - head.start) for _ in range(ARRAYS)))
        except (grpc.RpcError, WireError) as error:
            no = isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.FAILED_PRECONDITION
            raise (Declined if no else TransportError)(grpc_client.explain(self._address, error)) from error
        finally:
            call.cancel()

    def close(self) -> None:
        """Ends the stream, from any thread."""
        self._channel.close()


def _array(messages: Iterator[bytes], elements: int) -> NDArray[np.float32]:
    assembly = Assembly(4 * elements)
    while not assembly.whole:
        data = next(messages, None)
        if data is None:
            raise WireError(f"the stream ended after {assembly.filled} of {4 * elements} bytes")
        assembly.add(data)
    array: NDArray[Any] = np.frombuffer(assembly.body, "<f4")
    return array


def _head(data: bytes, sizes: tuple[int, ...]) -> SnapshotHead:
    """Raises `WireError` for a head that does not fit the layout."""
    try:
        head = msgspec.msgpack.decode(data, type=SnapshotHead)
    except msgspec.DecodeError as error:
        raise WireError(f"not a SnapshotHead: {error}") from error
    if not 0 <= head.number < len(sizes):
        raise WireError(f"fragment {head.number}: there are {len(sizes)}")
    if not 0 <= head.start <= head.stop <= sizes[head.number] + MOST_PADDING:
        raise WireError(
            f"part [{head.start}, {head.stop}) of fragment {head.number}, which has {sizes[head.number]}"
        )
    return head
