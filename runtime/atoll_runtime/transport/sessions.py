"""Sessions: messages both ways over one TLS connection, on the event loop of each end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from atoll_runtime.contract import SyncerAddress
from atoll_runtime.protocol.messages import Hello, Message
from atoll_runtime.transport.listener import HANDSHAKE_SECONDS
from atoll_runtime.transport.messages import DirectoryReply, DirectoryRequest, ShardHello
from atoll_runtime.transport.stream import LENGTH, Stream, explained, framed, length, listening, names, tune
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import CONNECT_SECONDS, TransferClient
from atoll_runtime.transport.transport import Endpoint, Peer, TransportError
from atoll_runtime.transport.wire import Down, Up, WireError, decode

log = logging.getLogger(__name__)

MOST_HANDSHAKES = 512
"""Handshakes under way, each of which takes 300 KiB. At the limit, the oldest is broken off."""


class TlsNetwork(TransferClient):
    """See `interfaces.Network`. Each session has a connection of its own, with the certificate at that time."""

    def __init__(self, shard: SyncerAddress, tls: Tls) -> None:
        super().__init__(shard.host, shard.transfer_port, tls)
        self._shard = shard
        self._sessions: set[asyncio.StreamWriter] = set()

    async def session(self, hello: Hello | ShardHello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        address = f"{self._shard.host}:{self._shard.port}"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._shard.host, self._shard.port, ssl=self._tls.identity().client
                )
        except OSError as error:
            raise TransportError(explained(address, error)) from error
        tune(writer.get_extra_info("socket"))

        async def say() -> None:
            with contextlib.suppress(OSError):  # the connection has ended, which its reader finds out
                writer.write(framed(hello))
                async for message in outgoing:
                    writer.write(framed(message))
                    await writer.drain()

        def said(sender: asyncio.Task[None]) -> None:
            if not sender.cancelled() and sender.exception() is not None:
                writer.transport.abort()  # ends the reading, which raises what has ended the sending

        sender = asyncio.create_task(say())
        sender.add_done_callback(said)
        self._sessions.add(writer)
        try:
            while (message := await _heard(reader)) is not None:
                if not isinstance(message, Down):
                    raise WireError(f"{type(message).__name__} does not belong on a session")
                yield message
        except asyncio.IncompleteReadError as error:
            if sender.done() and (failure := sender.exception()) is not None:
                raise failure from None
            raise TransportError(f"{address}: the connection broke") from error
        except (OSError, WireError) as error:
            raise TransportError(explained(address, error)) from error
        finally:
            sender.cancel()
            self._sessions.discard(writer)
            writer.transport.abort()

    def directory(self, request: DirectoryRequest) -> DirectoryReply:
        """Asks for units to seed from. Blocks; raises `TransportError`."""
        address = self._shard.host, self._shard.transfer_port
        try:
            with contextlib.closing(
                Stream.connect(address, self._tls.identity(), self._shard.host, CONNECT_SECONDS)
            ) as stream:
                stream.send(request)
                reply = stream.receive(CONNECT_SECONDS)
                if not isinstance(reply, DirectoryReply):
                    raise WireError(getattr(reply, "reason", f"{type(reply).__name__} is no DirectoryReply"))
        except (OSError, WireError) as error:
            raise TransportError(explained(f"{self._shard.host}:{self._shard.port}", error)) from error
        return reply

    async def close(self) -> None:
        for writer in self._sessions:
            writer.transport.abort()
        await super().close()


class SessionServer:
    """Serves the sessions of one endpoint on one port. Raises `OSError` when the port is taken."""

    def __init__(self, endpoint: Endpoint, tls: Tls, port: int) -> None:
        self._endpoint, self._context = endpoint, tls.server_context()
        self._socket = listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._accepting: asyncio.Task[None] | None = None
        self._shaking: dict[asyncio.Task[None], None] = {}
        """Connections before the end of their handshake, the oldest first. Their peers may be anybody."""
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to listen."""
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        log.info("serving sessions on port %d", self.port)

    async def stop(self) -> None:
        """Ends all sessions."""
        tasks = [*self._shaking, *self._open, *filter(None, [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("no session can be taken: %s", error)
                await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._shake(sock))
            self._shaking[task] = None
            task.add_done_callback(lambda done: self._shaking.pop(done, None))
            if len(self._shaking) > MOST_HANDSHAKES:
                oldest = next(iter(self._shaking))
                del self._shaking[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # `sock_accept` does not wait while there are connections

    async def _shake(self, sock: socket.socket) -> None:
        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, sock, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            log.debug("no handshake: %s", error)
            sock.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving, address = asyncio.current_task(), writer.get_extra_info("peername")
        assert serving is not None, "a server calls this in a task"
        self._open.add(serving)
        peer = Peer(names(writer.get_extra_info("peercert")), f"{address[0]}:{address[1]}")

        async def incoming() -> AsyncIterator[Up]:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while (message := await _heard(reader)) is not None:
                    if not isinstance(message, Up):
                        raise WireError(f"{type(message).__name__} does not belong on a session")
                    yield message
            serving.cancel()  # the other end has gone

        try:
            tune(writer.get_extra_info("socket"))
            async with contextlib.aclosing(self._endpoint.session(peer, incoming())) as session:  # type: ignore[type-var]
                async for message in session:
                    writer.write(framed(message))
                    await writer.drain()
                writer.write(LENGTH.pack(0))
        except (OSError, WireError, asyncio.CancelledError) as error:
            log.debug("the session of %s ended: %s", peer.address, error)
        finally:
            self._open.discard(serving)
            writer.close()


async def _heard(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None for a length of 0, which ends the messages.

    Raises:
        IncompleteReadError: the connection broke, as when the other process is killed.
        OSError, WireError: the connection can no longer be used.
    """
    size = length(await reader.readexactly(LENGTH.size))
    return decode(await reader.readexactly(size)) if size else None
