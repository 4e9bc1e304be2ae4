"""The shard's end of the connections that carry bodies: mTLS sockets on a port of their own.

The event loop admits and finishes; the bytes go through `lanes`, from and to memory that the endpoint owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import select
import socket
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from atoll_runtime.transport.chunks import Assembly, Sending
from atoll_runtime.transport.lanes import Lanes, Ready
from atoll_runtime.transport.messages import (
    MOST_STREAMS,
    Attach,
    Declined,
    Ended,
    FetchHead,
    FetchRequest,
    Header,
    Held,
    Message,
    PushReply,
)
from atoll_runtime.transport.stream import Steps, Stream
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Endpoint, Peer
from atoll_runtime.transport.wire import WireError

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 150.0
"""Between two transfers of one connection. Clients give theirs up earlier."""
RESUME_SECONDS = 30.0
"""What became of a part is kept for so long, and a version whose connections broke: for the same transfer to go on."""
MOST_BROKEN = 256
"""Fetches that are kept so."""
MOST_CONNECTIONS = 16_384
"""Two streams of 4,096 hosts, for each direction; fewer where the process may have fewer files."""
SPARE_FILES = 256
BACKLOG = 1024

T = TypeVar("T")


class Pushed:
    """A part that comes over some connections, while the endpoint waits for it. On the event loop."""

    def __init__(self, header: Header) -> None:
        self.header, self.streams = header, set[Stream]()
        self.assembly: Assembly | None = None
        self.ready, self._come = (asyncio.get_running_loop().create_future() for _ in range(2))
        """The endpoint wants it; all of it has come."""
        self.reply: asyncio.Task[PushReply] | None = None

    async def receive(self, assembly: Assembly) -> None:
        """Waits until the body is whole. Raises `WireError` where all its connections have ended before."""
        self.assembly = assembly
        self.ready.set_result(None)
        try:
            await self._come
        finally:
            if not assembly.whole:  # it is given up: nothing may be written to it any more
                for stream in self.streams:
                    stream.shut()
            self.assembly = None

    def same(self, header: Header) -> bool:
        mine = self.header
        return (mine.part, mine.codec, mine.size) == (header.part, header.codec, header.size)

    def looked_at(self) -> None:
        """A connection has sent all that it had, or has ended."""
        assembly = self.assembly
        if assembly is None or self._come.done():
            return
        if assembly.whole:
            self._come.set_result(None)
        elif not self.streams:
            reason = f"the connection broke after {assembly.filled} of {self.header.size} bytes"
            self._come.set_exception(WireError(reason))


class Fetched:
    """A version that goes out over some connections. On the event loop, but for `sending`."""

    def __init__(self, head: FetchHead, body: memoryview, chunk: int) -> None:
        self.head, self.sending = head, Sending(body, head.size, chunk)
        self.streams = 0
        self.broken = False


class TransferServer:
    """Serves one endpoint on one port. Raises `OSError` when the port is taken."""

    def __init__(self, endpoint: Endpoint, tls: Tls, port: int) -> None:
        self._endpoint, self._tls = endpoint, tls
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._most = _most_connections()
        self._streams: set[Stream] = set()
        self._idle: dict[Stream, None] = {}
        """Between two transfers, the longest first."""
        self._strangers: dict[Stream, None] = {}
        """Before the end of their handshake."""
        self._pushes: dict[tuple[Any, ...], Pushed] = {}
        self._fetches: dict[tuple[Any, ...], Fetched] = {}
        self._lanes: Lanes | None = None
        self._loop = asyncio.get_event_loop()

    async def start(self) -> None:
        """Begins to listen."""
        self._loop, self._lanes = asyncio.get_running_loop(), Lanes("transfers")
        self._lanes.begin(self._accept(self._lanes))
        log.info("serving bodies on port %d", self.port)

    async def stop(self) -> None:
        """Breaks all connections."""
        if self._lanes is not None:
            await asyncio.to_thread(self._lanes.close)
        self._listener.close()
        tasks = [push.reply for push in self._pushes.values() if push.reply is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # on the lanes

    def _accept(self, lanes: Lanes) -> Steps[None]:
        while True:
            if len(self._streams) >= self._most:
                for stream in [*self._strangers, *self._idle][:1]:
                    stream.shut()
                yield 0.1
                continue
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                yield Ready(self._listener.fileno(), select.EPOLLIN, float("inf"))
            except OSError as error:
                log.warning("no connection can be taken: %s", error)
                yield 1.0
            else:
                lanes.begin(self._serve(sock, f"{address[0]}:{address[1]}"))
                yield 0.0  # others have their turn, and this one is counted

    def _serve(self, sock: socket.socket, address: str) -> Steps[None]:
        try:
            stream = Stream(sock, self._tls.identity())
        except OSError:  # it has gone already
            return
        self._streams.add(stream)
        self._strangers[stream] = None
        try:
            yield from stream.handshake(HANDSHAKE_SECONDS)
            self._strangers.pop(stream, None)
            peer = Peer(stream.names, address)
            while True:
                self._idle[stream] = None
                attach = yield from stream.receive(IDLE_SECONDS)
                self._idle.pop(stream, None)
                if not isinstance(attach, Attach):
                    raise WireError(f"{type(attach).__name__} came instead of Attach")
                if not 0 <= attach.stream < MOST_STREAMS:
                    raise WireError(f"stream: {attach.stream} must be below {MOST_STREAMS}")
                if isinstance(attach.what, Header):
                    yield from self._take(stream, peer, attach.what)
                else:
                    yield from self._give(stream, peer, attach, attach.what)
        except (OSError, WireError) as error:
            log.debug("the connection of %s ended: %s", address, error)
        finally:
            self._streams.discard(stream)
            self._idle.pop(stream, None)
            self._strangers.pop(stream, None)
            stream.close()

    def _take(self, stream: Stream, peer: Peer, header: Header) -> Steps[None]:
        """A push."""
        found = yield from self._asked(self._begin_push(stream, peer, header))
        answer: Message
        if isinstance(found, PushReply):
            answer = found
        else:
            push, assembly = found
            try:
                yield from stream.send(Held(assembly.held()))
                yield from stream.receive_chunks(assembly)
                answer = yield from self._asked(self._reply(push, assembly))
            finally:
                self._tell(self._leave_push, push, stream)
        yield from stream.send(answer)

    def _give(self, stream: Stream, peer: Peer, attach: Attach, request: FetchRequest) -> Steps[None]:
        """A fetch."""
        key = peer.identities, attach.transfer
        found = yield from self._asked(self._begin_fetch(key, peer, attach, request))
        if isinstance(found, str):
            yield from stream.send(Declined(found))
            return
        done = False
        try:
            yield from stream.send(found.head)
            share = found.sending.attached(attach.stream, attach.held)
            yield from stream.send_chunks(found.sending, share, lambda: True)
            done = isinstance((yield from stream.receive()), Ended)
        finally:
            self._tell(self._leave_fetch, key, found, done)

    def _asked(self, work: Coroutine[Any, Any, T]) -> Steps[T]:
        """What the event loop says. Raises `WireError` where it ends."""
        try:
            answer: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise WireError(str(error)) from error
        yield answer
        if answer.cancelled():
            raise WireError("the shard ends")
        return answer.result()

    def _tell(self, what: Any, *facts: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(what, *facts)

    # on the event loop

    async def _begin_push(
        self, stream: Stream, peer: Peer, header: Header
    ) -> PushReply | tuple[Pushed, Assembly]:
        key = header.key, peer.identities
        push = self._pushes.get(key)
        if push is None or not push.same(header):
            push = self._pushes[key] = Pushed(header)
            push.reply = asyncio.create_task(self._endpoint.push(peer, header, push.receive))
            push.reply.add_done_callback(functools.partial(self._end_push, key, push))
        assert push.reply is not None
        push.streams.add(stream)
        either: set[asyncio.Future[Any]] = {push.reply, push.ready}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if push.assembly is None:
            push.streams.discard(stream)
            return await asyncio.shield(push.reply)
        return push, push.assembly

    async def _reply(self, push: Pushed, assembly: Assembly) -> PushReply | Ended:
        push.looked_at()
        assert push.reply is not None
        return await asyncio.shield(push.reply) if assembly.whole else Ended()

    def _leave_push(self, push: Pushed, stream: Stream) -> None:
        push.streams.discard(stream)
        push.looked_at()

    def _end_push(self, key: tuple[Any, ...], push: Pushed, task: asyncio.Task[PushReply]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, WireError | TimeoutError):
            log.error("a push failed", exc_info=error)
        if task.cancelled() or error is not None or not task.result().accepted:
            self._forget_push(key, push)
        else:  # its answer may get lost, and another of its connections come late
            self._loop.call_later(RESUME_SECONDS, self._forget_push, key, push)

    def _forget_push(self, key: tuple[Any, ...], push: Pushed) -> None:
        if self._pushes.get(key) is push:
            del self._pushes[key]

    async def _begin_fetch(
        self, key: tuple[Any, ...], peer: Peer, attach: Attach, request: FetchRequest
    ) -> Fetched | str:
        fetch = self._fetches.get(key)
        if fetch is None:
            found = self._endpoint.fetch(peer, request)
            if isinstance(found, str):
                return found
            fetch = self._fetches[key] = Fetched(*found, attach.chunk)
        fetch.streams += 1
        return fetch

    def _leave_fetch(self, key: tuple[Any, ...], fetch: Fetched, done: bool) -> None:
        fetch.streams -= 1
        fetch.broken |= not done
        if fetch.streams or self._fetches.get(key) is not fetch:
            return
        broken = [name for name, each in self._fetches.items() if each.broken and not each.streams]
        if not fetch.broken:
            del self._fetches[key]
        else:
            if len(broken) > MOST_BROKEN:
                del self._fetches[broken[0]]
            self._loop.call_later(RESUME_SECONDS, self._forget_fetch, key, fetch)

    def _forget_fetch(self, key: tuple[Any, ...], fetch: Fetched) -> None:
        if self._fetches.get(key) is fetch and not fetch.streams:
            del self._fetches[key]


def _most_connections() -> int:
    """As many as the process may have files, which are as many as it is allowed to have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else hard - SPARE_FILES
    return max(1, min(MOST_CONNECTIONS, files))
