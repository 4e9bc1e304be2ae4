"""A port that accepts TLS connections and serves each in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import threading
import time

from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.stream import Stream, listening
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer
from atoll_runtime.transport.wire import WireError

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 150.0
"""Longest time between two requests on one connection. Clients drop an idle connection earlier."""
MOST_CONNECTIONS = 8192
"""Fewer if the process may open fewer files. At the limit, the connection that has been idle for longest is closed."""
SPARE_FILES = 256
END_SECONDS = 5.0


class Listener:
    """Starts to serve when it is created. Raises `OSError` if the port is taken."""

    def __init__(self, tls: Tls, port: int, name: str) -> None:
        """`name`: that of the threads."""
        self.streams: dict[Stream, threading.Thread] = {}
        self._tls, self._name, self._most = tls, name, _most_connections()
        self._idle: dict[Stream, None] = {}
        """Connections before the end of their handshake or between two requests; those idle for longest first."""
        self._ended = False
        self._socket = listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()
        log.info("serving %s on port %d", name, self.port)

    def serve(self, stream: Stream, peer: Peer, request: Message) -> None:
        """Answers a request; raises `OSError` or `WireError` if the connection can no longer be used."""
        raise NotImplementedError

    def close(self) -> None:
        """Breaks all connections. Blocks for a few seconds at most."""
        self._ended = True
        with contextlib.suppress(OSError):  # it was closed before
            self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join(END_SECONDS)
        self._socket.close()
        end = time.monotonic() + END_SECONDS
        for stream, thread in list(self.streams.items()):
            stream.shut()
            thread.join(max(0.0, end - time.monotonic()))

    def _accept(self) -> None:
        while not self._ended:
            if len(self.streams) >= self._most:
                self._make_room()
                continue
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                if not self._ended:
                    log.warning("no connection can be taken: %s", error)
                    time.sleep(0.1)
                continue
            try:
                stream = Stream(sock, self._tls.identity())
            except OSError:  # its peer has left already; others must not wait for that
                continue
            peer = f"{address[0]}:{address[1]}"
            thread = threading.Thread(target=self._run, args=(stream, peer), name=self._name, daemon=True)
            self.streams[stream], self._idle[stream] = thread, None
            try:
                thread.start()
            except RuntimeError as error:  # the pod may have no further thread
                log.warning("no connection can be taken: %s", error)
                self._forget(stream)
                self._make_room()

    def _run(self, stream: Stream, address: str) -> None:
        try:
            stream.handshake(HANDSHAKE_SECONDS)
            peer = Peer(stream.names, address)
            while not self._ended:
                self._idle.setdefault(stream)
                request = stream.receive(IDLE_SECONDS)
                self._idle.pop(stream, None)
                self.serve(stream, peer, request)
        except (OSError, WireError) as error:
            log.debug("the connection of %s ended: %s", address, error)
        finally:
            self._forget(stream)

    def _make_room(self) -> None:
        for stream in list(self._idle)[:1]:
            stream.shut()
        time.sleep(0.1)

    def _forget(self, stream: Stream) -> None:
        self._idle.pop(stream, None)
        self.streams.pop(stream, None)
        stream.close()


def _most_connections() -> int:
    """Raises the process's limit of open files to the hard one, and returns how many connections that allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else hard - SPARE_FILES
    return max(1, min(MOST_CONNECTIONS, files))
