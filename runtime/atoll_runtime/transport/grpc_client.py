"""A learner host's gRPC channel to the syncer, mTLS always."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from atoll_runtime.sync.rules import TRANSFER_SECONDS
from atoll_runtime.transport.chunks import MESSAGE_LIMIT, Assembly, split
from atoll_runtime.transport.grpc_server import SERVICE
from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    Down,
    FetchHead,
    FetchRequest,
    Hello,
    PushHead,
    PushReply,
    ShardHello,
    Up,
    WireError,
    decode,
    encode,
)
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Link, TransportError

OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
CALL_SECONDS = 10.0
"""Deadline of a small call."""


class GrpcTransport:
    """One channel, shared by the session and the transfers; after a renewal of the certificate, the next session's."""

    def __init__(self, host: str, port: int, tls: Tls) -> None:
        self._address = f"{host}:{port}"
        self._tls = tls
        self._open()

    def _open(self) -> None:
        self._shown = self._tls.identity()
        self._channel = grpc.secure_channel(self._address, self._tls.client(), OPTIONS)
        self._session = self._channel.stream_stream(f"/{SERVICE}/Session")
        self._push = self._channel.stream_unary(f"/{SERVICE}/Push")
        self._fetch = self._channel.unary_stream(f"/{SERVICE}/Fetch")
        self._directory = self._channel.unary_unary(f"/{SERVICE}/Directory")

    def session(self, hello: Hello | ShardHello, next_up: Callable[[], Up | None]) -> Link:
        """See `Transport`. gRPC takes the messages from a thread of its own."""
        if self._tls.identity() is not self._shown:
            self._channel.close()  # the last session has ended, and with it all that its transfers were for
            self._open()

        def outgoing() -> Iterator[bytes]:
            yield encode(hello)
            while (message := next_up()) is not None:
                yield encode(message)

        return GrpcLink(self._session(outgoing()), self._address)

    def push(self, head: PushHead, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """See `Transport`."""

        def outgoing() -> Iterator[bytes]:
            yield encode(head)
            for chunk in split(body):
                if not wanted():
                    return  # the server takes no part that is not whole
                yield chunk

        with self._errors():
            reply = decode(self._push(outgoing(), timeout=TRANSFER_SECONDS))
        if not isinstance(reply, PushReply):
            raise TransportError(f"{self._address}: {type(reply).__name__} came instead of PushReply")
        return reply

    def fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """See `Transport`."""
        with self._errors():
            stream = self._fetch(encode(request), timeout=TRANSFER_SECONDS)
            head = decode(next(stream))
            if not isinstance(head, FetchHead):
                raise WireError(f"{type(head).__name__} came instead of FetchHead")
            assembly = Assembly(head.size)
            for data in stream:
                assembly.add(data)
            if not assembly.whole:
                raise WireError(f"the body ended after {assembly.filled} of {head.size} bytes")
        return head, assembly.body

    def directory(self, request: DirectoryRequest) -> DirectoryReply:
        """See `Transport`."""
        with self._errors():
            reply = decode(self._directory(encode(request), timeout=CALL_SECONDS))
        if not isinstance(reply, DirectoryReply):
            raise TransportError(f"{self._address}: {type(reply).__name__} came instead of DirectoryReply")
        return reply

    def close(self) -> None:
        """See `Transport`."""
        self._channel.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, WireError, StopIteration, ValueError) as error:
            raise TransportError(explain(self._address, error)) from error


class GrpcLink:
    """One session's stream of answers."""

    def __init__(self, call: Any, address: str) -> None:
        self._call, self._address = call, address

    def receive(self) -> Down | None:
        """See `Link`."""
        try:
            message = decode(next(self._call))
        except StopIteration:
            return None
        except (grpc.RpcError, WireError) as error:
            raise TransportError(explain(self._address, error)) from error
        if not isinstance(message, Down):
            raise TransportError(f"{self._address}: {type(message).__name__} does not belong on a session")
        return message

    def close(self) -> None:
        """See `Link`."""
        self._call.cancel()


def explain(address: str, error: Exception) -> str:
    """One line that a user can act on."""
    if not isinstance(error, grpc.Call):
        return f"{address}: {error or type(error).__name__}"
    detail = error.details() or ""
    if "handshake" in detail.lower() or "certificate" in detail.lower():
        return f"{address}: TLS refused, the certificates of the two ends are not of the same run: {detail}"
    return f"{address}: {error.code().name}: {detail}"
