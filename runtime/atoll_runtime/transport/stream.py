"""One TLS connection that carries bodies: messages with their length before them, and chunks. Its methods are steps of
a job of `lanes`."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from atoll_runtime.transport.chunks import Assembly, Sending, Share
from atoll_runtime.transport.lanes import Ready, Wait
from atoll_runtime.transport.messages import Message
from atoll_runtime.transport.tls import Identity
from atoll_runtime.transport.wire import Wire, WireError, decode, encode

STALL_SECONDS = 30.0
"""Without a byte, in the middle of a transfer."""
UNSENT_BYTES = 512 << 10
"""That the kernel takes before it can send them: a break loses no more than what is on its way."""
SLICE = 64 << 10
"""Bytes that are handed to TLS at a time, or awaited before they are read."""
LARGEST_RECORD = 20 << 10
"""Bytes that TLS may have taken from the kernel without giving any out, with room to spare."""
LARGEST_MESSAGE = 1 << 20
"""Bytes: a bit for each block of 512 GiB."""
LENGTH, CHUNK_HEAD = struct.Struct("!I"), struct.Struct("!QI")
"""Before a message its bytes; before a chunk where it begins, and its bytes. No bytes: there is no more."""
OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000)),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES),
)
"""Buffers are left to the kernel, which sizes them by the link."""

T = TypeVar("T")
Steps = Generator[Wait, None, T]


class Stream:
    """Takes a connected socket over. Every step raises `OSError` or `WireError` when the connection is of no use any
    more."""

    def __init__(self, sock: socket.socket, identity: Identity, server: str | None = None) -> None:
        """`server`: the name that the other end must show; None where this is the server. Raises `OSError`, and closes
        `sock`, when the connection has ended."""
        self.identity = identity
        context = identity.context if server is None else identity.client
        try:
            sock.setblocking(False)
            for level, name, value in OPTIONS:
                sock.setsockopt(level, name, value)
            sock.getpeername()  # `wrap_socket` would leave one open that was reset already
            self._sock = context.wrap_socket(
                sock, server_side=server is None, server_hostname=server, do_handshake_on_connect=False
            )
        except OSError:
            sock.close()
            raise
        self._fd, self._awaited = self._sock.fileno(), 1
        self.heard = 0
        """Messages that have come."""

    @property
    def names(self) -> tuple[str, ...]:
        """URI names of the certificate at the other end."""
        certificate: dict[str, Any] = self._sock.getpeercert() or {}
        found = tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI")
        return found or ("",)

    def handshake(self, seconds: float) -> Steps[None]:
        """TLS."""
        yield from self._until(self._sock.do_handshake, seconds)

    def send(self, message: Message) -> Steps[None]:
        """A message."""
        data = encode(message)
        yield from self._write(memoryview(LENGTH.pack(len(data)) + data))

    def receive(self, seconds: float = STALL_SECONDS) -> Steps[Wire]:
        """The next message, whose first byte must come within so many seconds."""
        prefix = yield from self._read(LENGTH.size, seconds)
        (size,) = LENGTH.unpack(prefix)
        if size > LARGEST_MESSAGE:
            raise WireError(f"a message of {size} bytes, where {LARGEST_MESSAGE} are the most")
        data = yield from self._read(size)
        self.heard += 1
        return decode(data)

    def send_chunks(self, sending: Sending, share: Share, wanted: Callable[[], bool]) -> Steps[None]:
        """What this connection can take of a body; then says that it has no more. Raises `WireError` once the body is
        not wanted any more."""
        while (span := sending.next(share)) is not None:
            if not wanted():
                raise WireError("the body is not wanted any more")
            data = sending.data(span)
            yield from self._write(memoryview(CHUNK_HEAD.pack(span[0], len(data))))
            yield from self._write(data)
            yield 0.0
        yield from self._write(memoryview(CHUNK_HEAD.pack(0, 0)))

    def receive_chunks(self, assembly: Assembly) -> Steps[None]:
        """Chunks, until the other end has no more for this connection."""
        while True:
            head = yield from self._read(CHUNK_HEAD.size)
            start, size = CHUNK_HEAD.unpack(head)
            if not size:
                return
            claim = assembly.claim(start, size)
            try:
                at, stalled = 0, -1
                while at < size:
                    try:
                        at += _some(claim.receive(self._sock.recv_into, at))
                    except ssl.SSLWantReadError:
                        self._await_bytes(min(size - at - LARGEST_RECORD, SLICE))
                        try:
                            yield Ready(self._fd, select.EPOLLIN, STALL_SECONDS)
                        except TimeoutError:
                            if at == stalled:
                                raise
                            stalled = at  # fewer bytes than were awaited may be here
                assembly.hold(claim)
                self._await_bytes(1)
            finally:
                assembly.drop(claim)
            yield 0.0

    def shut(self) -> None:
        """Breaks the connection, in any thread; its job finds out. `SSLSocket.shutdown` would disturb what TLS does."""
        with contextlib.suppress(OSError):  # it has ended already
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the connection. For its own job, or where it has none."""
        self._sock.close()

    def _await_bytes(self, count: int) -> None:
        """The socket is ready when it has so many, so that a fast link does not wake this job for each record."""
        count = max(count, 1)
        if count != self._awaited:
            self._awaited = count
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _write(self, data: memoryview) -> Steps[None]:
        sent = 0
        while sent < len(data):
            try:
                sent += self._sock.send(data[sent : sent + SLICE])
            except ssl.SSLWantWriteError:
                yield Ready(self._fd, select.EPOLLOUT, STALL_SECONDS)
            except ssl.SSLWantReadError:
                yield Ready(self._fd, select.EPOLLIN, STALL_SECONDS)

    def _read(self, size: int, seconds: float = STALL_SECONDS) -> Steps[bytes]:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = yield from self._until(functools.partial(self._sock.recv_into, rest), seconds)
            rest, seconds = rest[_some(count) :], STALL_SECONDS
        return bytes(data)

    def _until(self, step: Callable[[], T], seconds: float) -> Steps[T]:
        """The whole step has so many seconds, however often it waits."""
        end = time.monotonic() + seconds
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                yield Ready(self._fd, select.EPOLLIN, end - time.monotonic())
            except ssl.SSLWantWriteError:
                yield Ready(self._fd, select.EPOLLOUT, end - time.monotonic())


def _some(count: int) -> int:
    if not count:
        raise WireError("the other end has closed the connection")
    return count
