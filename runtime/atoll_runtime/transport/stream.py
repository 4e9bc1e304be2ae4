"""One TLS connection with a thread that waits for it. It carries messages with their length before them, and chunks."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any

from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.chunks import Assembly, Sending, Share
from atoll_runtime.transport.tls import Identity
from atoll_runtime.transport.wire import WireError, decode, encode

STALL_SECONDS = 30.0
"""Longest time in which no byte comes, or `PIECE` is not sent, unless a method says otherwise."""
PIECE = 256 << 10
"""Bytes of one call of `send`, because Python limits the time of the whole call."""
UNSENT_BYTES = 512 << 10
"""Bytes that the kernel takes before it can send them. So a break loses little more than what is on its way."""
LARGEST_MESSAGE = 8 << 20
"""Bytes. The longest are directories of runs of thousands of hosts."""
LENGTH, CHUNK_HEAD = struct.Struct("!I"), struct.Struct("!QI")
"""Before a message: its bytes. Before a chunk: where it begins, and its bytes. Zero bytes: there is no more."""
OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000)),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES),
)
"""Buffer sizes are not set, because the kernel adapts them to the link."""


class Stream:
    """Takes over a connected socket. Its methods raise `OSError` or `WireError` once the connection can no longer be
    used. For one thread, except `shut`."""

    def __init__(self, sock: socket.socket, identity: Identity, server: str | None = None) -> None:
        """`server`: the name that the other end must show; None if this end is the server. Raises `OSError`, and closes
        `sock`, if the connection has ended."""
        self.identity = identity
        context = identity.server if server is None else identity.client
        try:
            sock.settimeout(STALL_SECONDS)
            tune(sock)
            sock.getpeername()  # `wrap_socket` would not close a socket that was reset already
            self._sock = context.wrap_socket(
                sock, server_side=server is None, server_hostname=server, do_handshake_on_connect=False
            )
        except OSError:
            sock.close()
            raise
        self.heard = 0
        """How many messages have arrived."""

    @classmethod
    def connect(cls, address: tuple[str, int], identity: Identity, name: str, seconds: float) -> Stream:
        """Connects to a server that shows this name. Raises `OSError`."""
        stream = cls(socket.create_connection(address, seconds), identity, name)
        try:
            stream.handshake(seconds)
        except OSError:
            stream.close()
            raise
        return stream

    @property
    def names(self) -> tuple[str, ...]:
        """URI names of the certificate at the other end."""
        return names(self._sock.getpeercert())

    def handshake(self, seconds: float) -> None:
        """Performs the TLS handshake, within `seconds`."""
        with self._within(seconds):
            self._sock.do_handshake()

    def send(self, message: Message) -> None:
        """Sends a message."""
        self.write(memoryview(framed(message)))

    def receive(self, seconds: float = STALL_SECONDS) -> Message:
        """The next message. Its first byte must come within `seconds`."""
        with self._within(seconds):
            first = self._read(1)
        data = self._read(length(first + self._read(LENGTH.size - 1)))
        self.heard += 1
        return decode(data)

    def send_chunks(self, sending: Sending, share: Share, wanted: Callable[[], bool]) -> None:
        """Sends chunks of a body until none is left for this connection, then an end mark. Raises `WireError` if the
        body is no longer wanted."""
        while (span := sending.next(share)) is not None:
            if not wanted():
                raise WireError("the body is not wanted any more")
            data = sending.data(span)
            self.write(memoryview(CHUNK_HEAD.pack(span[0], len(data))))
            self.write(data)
        self.write(memoryview(CHUNK_HEAD.pack(0, 0)))

    def receive_chunks(self, assembly: Assembly) -> None:
        """Receives chunks until the other end has no more for this connection."""
        while True:
            start, size = CHUNK_HEAD.unpack(self._read(CHUNK_HEAD.size))
            if not size:
                return
            with assembly.chunk(start, size) as memory:
                self.read_into(memory)

    def write(self, data: memoryview) -> None:
        """Sends all of `data`."""
        sent = 0
        while sent < len(data):
            sent += self._sock.send(data[sent : sent + PIECE])

    def read_into(self, rest: memoryview) -> None:
        """Receives bytes until `rest` is full."""
        while rest:
            count = self._sock.recv_into(rest)
            if not count:
                raise WireError("the other end has closed the connection")
            rest = rest[count:]

    def until_left(self) -> None:
        """Waits until the other end leaves or sends anything, or until `shut`. Call it in another thread."""
        watch = select.poll()
        with contextlib.suppress(ValueError):  # it is closed already
            watch.register(self._sock, select.POLLIN | select.POLLRDHUP)
            watch.poll()

    def shut(self) -> None:
        """Breaks the connection, from any thread; its own thread notices. `SSLSocket.shutdown` would disturb TLS."""
        with contextlib.suppress(OSError):  # it has ended already
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the connection. Call in its own thread, or if it has none."""
        self._sock.close()

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        self.read_into(memoryview(data))
        return bytes(data)

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Within it, each wait for the other end takes at most `seconds`."""
        self._sock.settimeout(seconds)
        yield
        self._sock.settimeout(STALL_SECONDS)


def names(certificate: Any) -> tuple[str, ...]:
    """URI names of a certificate, as `Peer` has them."""
    found = tuple(value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI")
    return found or ("",)


def tune(sock: socket.socket) -> None:
    """Sets the options of every connection. Raises `OSError` if it has ended."""
    for level, name, value in OPTIONS:
        sock.setsockopt(level, name, value)


def listening(port: int) -> socket.socket:
    """A socket on this port, for IPv4 and, if available, IPv6. Raises `OSError` if the port is taken."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024)


def framed(message: Message) -> bytes:
    """A message with its length before it."""
    data = encode(message)
    return LENGTH.pack(len(data)) + data


def length(prefix: bytes) -> int:
    """The length before a message. Raises `WireError` if it is too long for a message."""
    (size,) = LENGTH.unpack(prefix)
    if size > LARGEST_MESSAGE:
        raise WireError(f"a message of {size} bytes, where {LARGEST_MESSAGE} are the most")
    return int(size)


def explained(address: str, error: Exception) -> str:
    """One line that a user can act on."""
    if isinstance(error, TimeoutError):
        return f"{address}: the other end is silent"
    ended = isinstance(error, ssl.SSLEOFError)
    if isinstance(error, ssl.SSLError) and not ended:
        return f"{address}: TLS refused; both ends need valid certificates of the same run: {error}"
    return f"{address}: {str(error) or type(error).__name__}"
