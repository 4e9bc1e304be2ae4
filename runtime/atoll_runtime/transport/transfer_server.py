"""The shard's end of the connections that carry bodies. The event loop admits and finishes transfers. Each connection
has a thread that moves the bytes, from and to memory that the endpoint owns."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from atoll_runtime.contract.specs import MOST_STREAMS
from atoll_runtime.protocol.messages import Header, Message
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.transport.chunks import Assembly, Sending
from atoll_runtime.transport.listener import Listener
from atoll_runtime.transport.messages import (
    Attach,
    Declined,
    DirectoryReply,
    DirectoryRequest,
    Ended,
    FetchHead,
    FetchRequest,
    Held,
    PushReply,
)
from atoll_runtime.transport.stream import Stream
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Endpoint, Peer
from atoll_runtime.transport.wire import WireError

log = logging.getLogger(__name__)

RESUME_SECONDS = 30.0
"""How long the reply to a part and a version with broken connections are kept, so that their transfer can continue."""

T = TypeVar("T")


class Pushed:
    """A part that comes over some connections while the endpoint waits for it. For the event loop only."""

    def __init__(self, header: Header) -> None:
        self.header, self.streams = header, dict[Stream, tuple[int, int]]()
        """`streams`: its connections, by the host's numbers of the transfer and of the connection in it."""
        self.assembly: Assembly | None = None
        self.ready, self._come = (asyncio.get_running_loop().create_future() for _ in range(2))
        """Done when the endpoint wants the part, and when all of it has arrived."""
        self.reply: asyncio.Task[PushReply] | None = None

    async def receive(self, assembly: Assembly) -> None:
        """Waits until the body is whole. Raises `WireError` if all its connections end before."""
        self.assembly = assembly
        self.ready.set_result(None)
        try:
            await self._come
        finally:
            if not assembly.whole:  # it is given up, so nothing more may be written to it
                for stream in self.streams:
                    stream.shut()
            self.assembly = None

    def same(self, header: Header) -> bool:
        mine = self.header
        return (mine.part, mine.codec, mine.size) == (header.part, header.codec, header.size)

    def looked_at(self) -> None:
        """Call when a connection has sent all that it had, or has ended."""
        assembly = self.assembly
        if assembly is None or self._come.done():
            return
        if assembly.whole:
            self._come.set_result(None)
        elif not self.streams:
            reason = f"the connection broke after {assembly.filled} of {self.header.size} bytes"
            self._come.set_exception(WireError(reason))


class Fetched:
    """A version that is sent over some connections. For the event loop only, except `sending`."""

    def __init__(self, transfer: int, head: FetchHead, body: memoryview, chunk: int) -> None:
        self.transfer, self.head, self.sending = transfer, head, Sending(body, head.size, chunk)
        self.streams = set[Stream]()
        self.broken = False
        self.expiry: asyncio.TimerHandle | None = None


class TransferServer(Listener):
    """Serves one endpoint on one port, on the event loop on which it is made.

    A host that reads slowly keeps an old version in memory. So it has one fetch of each part at a time, for at most
    `seconds`.
    """

    def __init__(self, endpoint: Endpoint, tls: Tls, port: int, seconds: float = TRANSFER_SECONDS) -> None:
        """Raises `OSError` when the port is taken."""
        self._endpoint, self._loop, self._seconds = endpoint, asyncio.get_running_loop(), seconds
        self._pushes: dict[tuple[Any, ...], Pushed] = {}
        self._fetches: dict[tuple[Any, ...], Fetched] = {}
        super().__init__(tls, port, "transfers")

    async def stop(self) -> None:
        """Breaks all connections."""
        self._ended = True  # from now on no push begins
        tasks = [push.reply for push in self._pushes.values() if push.reply is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.close)

    # in the threads of connections

    def serve(self, stream: Stream, peer: Peer, request: Message) -> None:
        if isinstance(request, DirectoryRequest):
            stream.send(self._asked(self._directory(peer, request)))
            return
        if not isinstance(request, Attach):
            raise WireError(f"{type(request).__name__} came instead of Attach")
        if not 0 <= request.stream < MOST_STREAMS:
            raise WireError(f"stream: {request.stream} must be below {MOST_STREAMS}")
        if isinstance(request.what, Header):
            self._take(stream, peer, request, request.what)
        else:
            self._give(stream, peer, request, request.what)

    def _take(self, stream: Stream, peer: Peer, attach: Attach, header: Header) -> None:
        """Serves one connection of a push."""
        found = self._asked(self._begin_push(stream, peer, attach, header))
        answer: Message
        if isinstance(found, PushReply):
            answer = found
        else:
            push, assembly = found
            try:
                stream.send(Held(assembly.held()))
                stream.receive_chunks(assembly)
                answer = self._asked(self._reply(push, assembly))
            finally:
                self._tell(self._leave_push, push, stream)
        stream.send(answer)

    def _give(self, stream: Stream, peer: Peer, attach: Attach, request: FetchRequest) -> None:
        """Serves one connection of a fetch."""
        key = peer.identities, request.unit, request.incarnation, request.fragment, request.start
        found = self._asked(self._begin_fetch(key, stream, peer, attach, request))
        if isinstance(found, str):
            stream.send(Declined(found))
            return
        done = False
        try:
            stream.send(found.head)
            share = found.sending.attached(attach.stream, attach.held)
            stream.send_chunks(found.sending, share, lambda: True)
            done = isinstance(stream.receive(), Ended)
        finally:
            self._tell(self._leave_fetch, key, found, stream, done)

    def _asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the event loop and returns its result. Raises `WireError` if the event loop ends."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (RuntimeError, CancelledError) as error:
            work.close()
            raise WireError(f"the shard ends: {error}") from error

    def _tell(self, what: Any, *facts: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(what, *facts)

    # on the event loop

    async def _directory(self, peer: Peer, request: DirectoryRequest) -> DirectoryReply | Declined:
        found = self._endpoint.directory(peer, request)
        return Declined(found) if isinstance(found, str) else found

    async def _begin_push(
        self, stream: Stream, peer: Peer, attach: Attach, header: Header
    ) -> PushReply | tuple[Pushed, Assembly]:
        if self._ended:
            raise WireError("the shard ends")
        key = header.key, peer.identities
        push = self._pushes.get(key)
        if push is None or not push.same(header):
            push = self._pushes[key] = Pushed(header)
            push.reply = asyncio.create_task(self._endpoint.push(peer, header, push.receive))
            push.reply.add_done_callback(functools.partial(self._end_push, key, push))
        assert push.reply is not None
        mine = attach.transfer, attach.stream
        for other, its in push.streams.items():
            if its[0] != attach.transfer or its == mine:  # it is broken, but that was not noticed here
                other.shut()
        push.streams[stream] = mine
        either: set[asyncio.Future[Any]] = {push.reply, push.ready}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if push.assembly is None:
            del push.streams[stream]
            return await asyncio.shield(push.reply)
        return push, push.assembly

    async def _reply(self, push: Pushed, assembly: Assembly) -> PushReply | Ended:
        push.looked_at()
        assert push.reply is not None
        return await asyncio.shield(push.reply) if assembly.whole else Ended()

    def _leave_push(self, push: Pushed, stream: Stream) -> None:
        del push.streams[stream]
        push.looked_at()

    def _end_push(self, key: tuple[Any, ...], push: Pushed, task: asyncio.Task[PushReply]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, WireError | TimeoutError):
            log.error("a push failed", exc_info=error)
        if task.cancelled() or error is not None or not task.result().accepted:
            self._forget_push(key, push)
        else:  # its answer may be lost, or another of its connections may come late
            self._loop.call_later(RESUME_SECONDS, self._forget_push, key, push)

    def _forget_push(self, key: tuple[Any, ...], push: Pushed) -> None:
        if self._pushes.get(key) is push:
            del self._pushes[key]

    async def _begin_fetch(
        self, key: tuple[Any, ...], stream: Stream, peer: Peer, attach: Attach, request: FetchRequest
    ) -> Fetched | str:
        fetch = self._fetches.get(key)
        if fetch is None or fetch.transfer != attach.transfer:
            found = self._endpoint.fetch(peer, request)
            if isinstance(found, str):
                return found
            if fetch is not None:
                self._end_fetch(key, fetch)
            fetch = self._fetches[key] = Fetched(attach.transfer, *found, attach.chunk)
            fetch.expiry = self._loop.call_later(self._seconds, self._end_fetch, key, fetch)
        fetch.streams.add(stream)
        return fetch

    def _leave_fetch(self, key: tuple[Any, ...], fetch: Fetched, stream: Stream, done: bool) -> None:
        fetch.streams.discard(stream)
        fetch.broken |= not done
        if fetch.streams or self._fetches.get(key) is not fetch:
            return
        if not fetch.broken:
            self._end_fetch(key, fetch)
        else:
            self._loop.call_later(RESUME_SECONDS, self._forget_fetch, key, fetch)

    def _forget_fetch(self, key: tuple[Any, ...], fetch: Fetched) -> None:
        if not fetch.streams:
            self._end_fetch(key, fetch)

    def _end_fetch(self, key: tuple[Any, ...], fetch: Fetched) -> None:
        if self._fetches.get(key) is fetch:
            del self._fetches[key]
        if fetch.expiry is not None:
            fetch.expiry.cancel()
        for stream in fetch.streams:
            stream.shut()
