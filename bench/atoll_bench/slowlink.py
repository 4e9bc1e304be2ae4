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
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server
        self._thread = threading.Thread(target=self._loop.run_forever, name="slowlink", daemon=True)

    def start(self) -> None:
        self._thread.start()
        listener = self._small(socket.create_server(("127.0.0.1", 0)))
        starting = asyncio.start_server(self._accepted, sock=listener)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _small(self, sock: socket.socket) -> socket.socket:
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF) if self._buffers else ():
            sock.setsockopt(socket.SOL_SOCKET, name, self._buffers)
        return sock

    async def _end(self) -> None:
        # Python 3.11 leaves connections open that are being accepted when the server is closed, or are cancelled.
        self._loop.remove_reader(self._server.sockets[0].fileno())
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks.copy():
                task.cancel()
            await asyncio.wait(others)
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._tasks.add(task := self._loop.create_task(self._connected(reader, writer)))
        task.add_done_callback(self._tasks.discard)

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
