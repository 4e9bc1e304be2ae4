"""A host's end of the connections that carry bodies to and from one shard."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, TypeVar

import msgspec

from atoll_runtime.contract.specs import MOST_STREAMS
from atoll_runtime.protocol.messages import Header
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.transport.chunks import CHUNK, Assembly, Sending
from atoll_runtime.transport.messages import (
    Attach,
    Declined,
    Ended,
    FetchHead,
    FetchRequest,
    Held,
    PushReply,
)
from atoll_runtime.transport.stream import STALL_SECONDS, Stream, explained
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import WireError

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0
"""A connection that was idle for longer is closed. The shard or a firewall may have dropped it."""
BESIDE = 4
"""How many transfers' connections are kept for later transfers: two in each direction."""
RECONNECTS = 4
"""Consecutive reconnects of a connection that breaks at once, with nothing more arrived. Then the transfer is given
up."""
BACKOFF_SECONDS = (0.1, 2.0)

T = TypeVar("T")


class Transfer(Generic[T]):
    """One body over several streams, each in a thread of its own. `asked`: whether it is still wanted."""

    def __init__(self, chunk: int, streams: int, asked: Callable[[], bool] = lambda: True) -> None:
        self.number, self.chunk, self._asked = secrets.randbits(63), chunk, asked
        self.result: Future[T] = Future()
        self.streams: set[Stream] = set()
        """Streams that carry it now."""
        self._lock, self._left = threading.Lock(), streams
        """Streams that have not sent or received their last chunk."""

    def carry(self, stream: Stream, number: int) -> T | None:
        """Does the work of one stream. Returns the result if this stream brings it. Raises `OSError` or `WireError`."""
        raise NotImplementedError

    @property
    def arrived(self) -> int:
        """How much of the body has arrived, as far as this end knows."""
        raise NotImplementedError

    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.result.done() and self._asked()

    def settle(self, result: T | Exception) -> None:
        """Sets the result, unless there is one. A failure breaks all streams."""
        with contextlib.suppress(InvalidStateError):  # there is a result, or nobody waits for it
            if isinstance(result, Exception):
                self.result.set_exception(result)
            else:
                self.result.set_result(result)
        if isinstance(result, Exception):
            for stream in list(self.streams):
                stream.shut()

    def leave(self) -> None:
        """Call when one stream has nothing more to do."""
        with self._lock:
            self._left -= 1
        if not self._left:
            self.settle(TransportError("the body did not arrive whole"))


class Push(Transfer[PushReply]):
    """A part on its way to the shard."""

    def __init__(
        self, header: Header, body: memoryview, wanted: Callable[[], bool], chunk: int, streams: int
    ) -> None:
        super().__init__(chunk, streams, wanted)
        self._header, self.sending = header, Sending(body, header.size, chunk)

    def carry(self, stream: Stream, number: int) -> PushReply | None:
        stream.send(Attach(self._header, self.number, number, self.chunk))
        answer = stream.receive()
        if isinstance(answer, Held):
            share = self.sending.attached(number, answer.blocks)
            stream.send_chunks(self.sending, share, self.wanted)
            answer = stream.receive(TRANSFER_SECONDS)  # the shard reads the body first
        if not isinstance(answer, PushReply | Ended):
            raise WireError(f"{type(answer).__name__} came instead of PushReply")
        return answer if isinstance(answer, PushReply) else None

    @property
    def arrived(self) -> int:
        return self.sending.arrived


class Fetch(Transfer[tuple[FetchHead, memoryview]]):
    """A part on its way from the shard."""

    def __init__(
        self, request: FetchRequest, answered: Callable[[], object], chunk: int, streams: int
    ) -> None:
        super().__init__(chunk, streams)
        self._request, self._answered = request, answered
        self._begun: tuple[FetchHead, Assembly] | None = None

    def carry(self, stream: Stream, number: int) -> tuple[FetchHead, memoryview] | None:
        held = b"" if self._begun is None else self._begun[1].held()
        stream.send(Attach(self._request, self.number, number, self.chunk, held))
        head = stream.receive()
        if isinstance(head, Declined):
            self.streams.discard(stream)  # it can carry the next transfer
            self.settle(TransportError(head.reason))
            return None
        if not isinstance(head, FetchHead):
            raise WireError(f"{type(head).__name__} came instead of FetchHead")
        first, assembly = self._begin(head)
        if msgspec.structs.replace(head, cut=first.cut, merged=first.merged) != first:  # these two may change
            self.settle(TransportError(f"version {head.version} came in the place of {first.version}"))
            raise WireError("another version")
        stream.receive_chunks(assembly)
        stream.send(Ended())
        return (first, assembly.body) if assembly.whole else None

    @property
    def arrived(self) -> int:
        return 0 if self._begun is None else self._begun[1].filled

    def _begin(self, head: FetchHead) -> tuple[FetchHead, Assembly]:
        """Head and assembly of the stream that came first, for all streams."""
        with self._lock:
            if self._begun is None:
                self._begun = head, Assembly(head.size)
                with contextlib.suppress(RuntimeError):  # the event loop has ended
                    self._answered()
            return self._begun


class TransferClient:
    """The pushes and fetches of a `Network`, over a few connections that later transfers use again. After a renewal of
    the certificate it makes new ones."""

    def __init__(self, host: str, port: int, tls: Tls) -> None:
        self._place, self._address, self._tls = (host, port), f"{host}:{port}", tls
        self.streams, self.chunk = 1, CHUNK
        """Connections of one body and bytes of a chunk, for transfers that begin from now on."""
        self._idle: deque[tuple[Stream, float]] = deque()
        """Idle connections and since when they are idle; the newest last."""
        self.broken = 0
        self._lock = threading.Lock()
        self._open = False
        self._transfers: set[Transfer[Any]] = set()

    async def push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """`wanted` is called in another thread."""
        streams = self._streams(header.size)
        return await self._run(Push(header, body, wanted, self.chunk, streams), streams)

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        loop = asyncio.get_running_loop()
        streams = self._streams((request.stop - request.start) * 4)
        told = functools.partial(loop.call_soon_threadsafe, answered)
        return await self._run(Fetch(request, told, self.chunk, streams), streams)

    def tune(self, streams: int, chunk: int) -> None:
        self.streams, self.chunk = streams, chunk

    async def close(self) -> None:
        """Ends transfers with `TransportError`, and frees all connections."""
        for transfer in list(self._transfers):
            transfer.settle(TransportError(f"{self._address}: the connection was closed"))
        with self._lock:
            self._open = False
            while self._idle:
                self._idle.pop()[0].close()

    def _streams(self, size: int) -> int:
        return max(1, min(self.streams, -(-size // self.chunk), MOST_STREAMS))

    async def _run(self, transfer: Transfer[T], streams: int) -> T:
        self._transfers.add(transfer)
        self._open = True
        for number in range(streams):
            threading.Thread(target=self._work, args=(transfer, number), name="body", daemon=True).start()
        try:
            async with asyncio.timeout(TRANSFER_SECONDS):
                return await asyncio.wrap_future(transfer.result)
        except TimeoutError as error:
            late = TransportError(f"{self._address}: not done in {TRANSFER_SECONDS:g} s")
            transfer.settle(late)
            raise late from error
        except BaseException:
            transfer.settle(TransportError("given up"))
            raise
        finally:
            self._transfers.discard(transfer)

    def _work(self, transfer: Transfer[Any], number: int) -> None:
        """Runs one stream of a transfer, in its own thread."""
        try:
            self._carry(transfer, number)
        except Exception as error:  # for lack of memory, say; it ends the process
            transfer.settle(error)
        finally:
            transfer.leave()

    def _carry(self, transfer: Transfer[Any], number: int) -> None:
        """Carries the stream, and connects again if it breaks."""
        backoff, attempts, connected = Backoff(*BACKOFF_SECONDS), 0, False
        while not transfer.result.done():
            stream = used = self._used()
            began, arrived, heard = time.monotonic(), transfer.arrived, 0
            try:
                stream = used or Stream.connect(
                    self._place, self._tls.identity(), self._place[0], CONNECT_SECONDS
                )
                connected, heard = True, stream.heard
                transfer.streams.add(stream)
                result = None
                if not transfer.result.done():  # it may have taken long to connect
                    result = transfer.carry(stream, number)
            except (OSError, WireError) as error:
                if stream is not None:
                    transfer.streams.discard(stream)
                    stream.close()
                    if stream.heard > heard and transfer.wanted():
                        with self._lock:
                            self.broken += 1
                if used is not None:
                    continue  # the shard may have closed it long ago
                if not transfer.wanted():
                    transfer.settle(TransportError(f"{self._address}: the body is not wanted any more"))
                    return
                if not connected and transfer.streams:
                    return  # the others carry the body
                lasted = time.monotonic() - began > STALL_SECONDS or transfer.arrived > arrived
                attempts = 1 if lasted else attempts + 1
                if not connected or attempts > RECONNECTS:
                    transfer.settle(TransportError(explained(self._address, error)))
                    return
                time.sleep(backoff.seconds())
            else:
                transfer.streams.discard(stream)
                self._keep(stream)  # before the caller continues, so that its next transfer finds it
                if result is not None:
                    transfer.settle(result)
                return

    def _used(self) -> Stream | None:
        """The idle connection that was used last, or None. Closes those that are not used again."""
        identity = self._tls.identity()
        with self._lock:
            while self._idle and time.monotonic() - self._idle[0][1] >= IDLE_SECONDS:
                self._idle.popleft()[0].close()
            while self._idle:
                stream, _ = self._idle.pop()
                if stream.identity is identity:
                    return stream
                stream.close()
        return None

    def _keep(self, stream: Stream) -> None:
        with self._lock:
            if self._open and len(self._idle) < BESIDE * self.streams:
                self._idle.append((stream, time.monotonic()))
            else:
                stream.close()
