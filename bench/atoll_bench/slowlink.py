"""A TCP proxy that delays answers, as a distant bucket does, and breaks connections, as a bad link does."""

from __future__ import annotations

import asyncio
import math
import socket
import threading

from atoll_local.process import Startable

CHUNK = 1 << 16


class SlowLink(Startable):
    """Forwards connections to `host:port`. What the server sends arrives `latency` seconds later, at full speed."""

    def __init__(self, host: str, port: int, buffers: int = 0) -> None:
        """`buffers`: bytes that the kernel keeps at each end of the proxy; 0: the kernel's default."""
        self.latency = 0.0
        self.sent = self.received = 0
        """Bytes that clients have sent, and that the server has sent."""
        self.cut_at = math.inf
        """All connections break once, when this many bytes have passed in both directions together."""
        self.port = 0
        """The proxy's port, after its start."""
        self._target, self._buffers = (host, port), buffers
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop
        self._started, self._ending = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="slowlink", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        self._started.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        """Serves until `stop`. Then asyncio cancels what still runs."""
        self._loop = asyncio.get_running_loop()
        listener = self._small(socket.create_server(("127.0.0.1", 0)))
        self.port = listener.getsockname()[1]
        async with await asyncio.start_server(self._connected, sock=listener):
            self._started.set()
            await self._ending.wait()

    def _small(self, sock: socket.socket) -> socket.socket:
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF) if self._buffers else ():
            sock.setsockopt(socket.SOL_SOCKET, name, self._buffers)
        return sock

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
            self._small(onward_writer.get_extra_info("socket"))
        except (OSError, asyncio.CancelledError):
            writer.close()  # tells the client that the server is not there
            return
        self._writers.add(onward_writer)
        try:
            await asyncio.gather(self._forward(reader, onward_writer), self._answer(onward_reader, writer))
        except (OSError, asyncio.CancelledError):
            return  # one side closed the connection, or the proxy ends
        finally:
            onward_writer.close()
            writer.close()

    def _passed(self) -> None:
        if self.sent + self.received >= self.cut_at:
            self.cut_at = math.inf
            for writer in self._writers:
                writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            self.sent += len(data)
            self._passed()
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            self.received += len(data)
            self._passed()
            self._loop.call_later(self.latency, writer.write, data)
            await writer.drain()
        await asyncio.sleep(self.latency)
        writer.close()
