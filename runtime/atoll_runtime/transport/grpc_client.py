"""The way to one shard of the syncer, of a learner's host or of another shard: gRPC, and connections for bodies; mTLS
always."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import grpc.aio

from atoll_runtime.contract import SyncerAddress
from atoll_runtime.transport.chunks import MESSAGE_LIMIT
from atoll_runtime.transport.grpc_server import SERVICE
from atoll_runtime.transport.messages import (
    DirectoryReply,
    DirectoryRequest,
    FetchHead,
    FetchRequest,
    Header,
    Hello,
    PushReply,
)
from atoll_runtime.transport.shardmessages import ShardHello
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import TransferClient
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import Down, Up, WireError, decode, encode

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


class GrpcNetwork:
    """See `interfaces.Network`. A channel for the session, which a renewal of the certificate renews for the next one;
    bodies have connections of their own."""

    def __init__(self, shard: SyncerAddress, tls: Tls) -> None:
        self._address = f"{shard.host}:{shard.port}"
        self._tls = tls
        self._transfers = TransferClient(shard.host, shard.transfer_port, tls)
        self._channel: grpc.aio.Channel | None = None
        self._shown: object = None
        """The identity that the channel shows."""

    async def session(self, hello: Hello | ShardHello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """See `Network`."""
        if self._tls.identity() is not self._shown:
            await self._close_channel()  # the last session has ended

        call = self._open.stream_stream(f"/{SERVICE}/Session")()

        async def say() -> None:
            with contextlib.suppress(
                grpc.RpcError, grpc.aio.UsageError
            ):  # it has ended: who reads it is told
                await call.write(encode(hello))
                async for message in outgoing:
                    await call.write(encode(message))

        # Not gRPC's own task: that would take a message from `outgoing` after the shard has ended the session.
        sender = asyncio.create_task(say())
        try:
            with self._errors():
                async for data in call:
                    message = decode(data)
                    if not isinstance(message, Down):
                        raise WireError(f"{type(message).__name__} does not belong on a session")
                    yield message
        finally:
            sender.cancel()
            call.cancel()

    async def push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """See `Network`."""
        return await self._transfers.push(header, body, wanted)

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        """See `Network`."""
        return await self._transfers.fetch(request, answered)

    @property
    def broken(self) -> int:
        """See `Network`."""
        return self._transfers.broken

    def tune(self, streams: int, chunk: int) -> None:
        """See `Network`."""
        self._transfers.streams, self._transfers.chunk = streams, chunk

    def directory(self, request: DirectoryRequest) -> DirectoryReply:
        """Asks for units to seed from, on a channel of its own. Blocks; raises `TransportError`."""
        with (
            self._errors(),
            grpc.secure_channel(self._address, self._tls.client(), OPTIONS) as channel,
        ):
            ask = channel.unary_unary(f"/{SERVICE}/Directory")
            reply = decode(ask(encode(request), timeout=CALL_SECONDS))
            if not isinstance(reply, DirectoryReply):
                raise WireError(f"{type(reply).__name__} came instead of DirectoryReply")
        return reply

    async def close(self) -> None:
        """See `Network`."""
        self._transfers.close()
        await self._close_channel()

    async def _close_channel(self) -> None:
        channel, self._channel, self._shown = self._channel, None, None
        if channel is not None:
            await channel.close()

    @property
    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._shown = self._tls.identity()
            self._channel = grpc.aio.secure_channel(self._address, self._tls.client(), OPTIONS)
        return self._channel

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, grpc.aio.UsageError, WireError, ValueError) as error:
            raise TransportError(explain(self._address, error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise TransportError(f"{self._address}: the channel was closed") from error


def explain(address: str, error: Exception) -> str:
    """One line that a user can act on."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return f"{address}: {error or type(error).__name__}"
    detail = error.details() or ""
    if "handshake" in detail.lower() or "certificate" in detail.lower():
        return f"{address}: TLS refused, the certificates of the two ends are not of the same run: {detail}"
    return f"{address}: {error.code().name}: {detail}"
