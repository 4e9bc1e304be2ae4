"""A body in chunks: which have arrived, and which must still be sent. TLS checks that chunks arrive undamaged."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

import numpy as np

from atoll_runtime.transport.wire import WireError

BLOCK = 64 << 10
"""Bytes of a block. Chunks begin at multiples of it. Both ends have a bit for each block."""
CHUNK, MOST_CHUNK = 1 << 20, 4 << 20
"""Bytes of a chunk by default, and of the largest chunk."""
WAIT_SECONDS = 10.0
"""For a connection that sends the same chunk, which the server has broken."""

Span = tuple[int, int]
"""Bytes [start, stop) of a body."""


def filled(body: memoryview, size: int) -> memoryview:
    """A copy of `body` that is filled with zeros up to `size` bytes, as it arrives at the other end."""
    return memoryview(bytearray(body).ljust(size, b"\0"))


class Assembly:
    """A body that arrives in chunks: in any order, over several connections, some more than once. For any thread."""

    def __init__(self, size: int) -> None:
        self.body = memoryview(np.empty(size, np.uint8).data)
        self.filled = 0
        self._held = np.zeros(-(-size // BLOCK), np.bool_)
        self._arriving: set[Span] = set()
        self._lock = threading.Condition()
        """Notified when a chunk does not arrive any more."""

    @property
    def whole(self) -> bool:
        return self.filled == len(self.body)

    def held(self) -> bytes:
        """One bit for each block: whether it has arrived."""
        with self._lock:
            return np.packbits(self._held).tobytes()

    @contextlib.contextmanager
    def chunk(self, start: int, size: int) -> Iterator[memoryview]:
        """Memory to receive a chunk in, which has arrived when the context ends without an error. A chunk that had
        arrived before is received but not kept.

        Raises:
            WireError: no chunk can have this place, or another connection goes on sending to it.
        """
        stop, whole = start + size, len(self.body)
        if start % BLOCK or not 0 < size <= MOST_CHUNK or stop > whole or (stop % BLOCK and stop != whole):
            raise WireError(f"chunk [{start}, {stop}) of {whole} bytes, in blocks of {BLOCK}")
        blocks = self._held[start // BLOCK : -(-stop // BLOCK)]

        def free() -> bool:
            return all(stop <= first or last <= start for first, last in self._arriving)

        with self._lock:
            if not self._lock.wait_for(free, WAIT_SECONDS):
                raise WireError("another connection sends the same chunk")
            known = blocks.any()
            if not known:
                self._arriving.add((start, stop))
        if known:
            yield memoryview(bytearray(size))
            return
        try:
            yield self.body[start:stop]
            with self._lock:
                blocks[:] = True
                self.filled += size
        finally:
            with self._lock:
                self._arriving.remove((start, stop))
                self._lock.notify_all()

    def fill(self, body: memoryview) -> None:
        """Sets the whole body at once, if no connection carries it."""
        self.body[:] = body
        self._held[:], self.filled = True, len(body)


class Share:
    """The chunks of a body that one connection has taken to send."""

    def __init__(self) -> None:
        self.taken: list[Span] = []
        self.live = True


class Sending:
    """A body that is sent over several connections. Each takes the next chunk when it has sent the last. For any
    thread.

    Args:
        size: bytes; zeros follow a shorter `body`.
        chunk: bytes, rounded down to whole blocks.
    """

    def __init__(self, body: memoryview, size: int, chunk: int) -> None:
        self._body, self._size = body, size
        self._per_chunk = min(max(chunk, BLOCK), MOST_CHUNK) // BLOCK
        self._blocks = -(-size // BLOCK)
        self.arrived = 0
        """Blocks that the other end has, as it said last."""
        self._todo: deque[Span] | None = None
        self._shares: dict[int, Share] = {}
        self._lock = threading.Lock()

    def attached(self, number: int, held: bytes) -> Share:
        """Call when connection `number` begins, or begins again; the other end has the blocks of `held`.

        Raises:
            WireError: `held` has the wrong size.
        """
        if held and len(held) != -(-self._blocks // 8):
            raise WireError(f"held: {len(held)} bytes for {self._blocks} blocks")
        raw = np.frombuffer(held or bytes(-(-self._blocks // 8)), np.uint8)
        known = np.unpackbits(raw, count=self._blocks)
        with self._lock:
            self.arrived = int(known.sum())
            if self._todo is None:
                self._todo = deque(self._missing(known))
            share, older = Share(), self._shares.get(number)
            if older is not None:
                older.live = False
                lost = [span for span in older.taken if not known[span[0] // BLOCK]]
                self._todo.extendleft(reversed(lost))
            self._shares[number] = share
        return share

    def next(self, share: Share) -> Span | None:
        """The chunk to send next; None if there is none, or if the connection has begun again."""
        with self._lock:
            if not (self._todo and share.live):
                return None
            span = self._todo.popleft()
            share.taken.append(span)
        return span

    def data(self, span: Span) -> memoryview:
        """Bytes of a chunk. They are copied only if the chunk goes beyond the end of the body."""
        start, stop = span
        inside = self._body[start:stop]
        return inside if len(inside) == stop - start else filled(inside, stop - start)

    def _missing(self, known: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Iterator[Span]:
        edges = np.flatnonzero(np.diff(known.astype(np.int8), prepend=1, append=1))
        for start, stop in edges.reshape(-1, 2).tolist():
            for at in range(start, stop, self._per_chunk):
                yield at * BLOCK, min(min(at + self._per_chunk, stop) * BLOCK, self._size)
