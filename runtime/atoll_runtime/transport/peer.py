"""Connections between learners. On each, a host sends its part of every fragment, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import MOST_PADDING
from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.listener import Listener
from atoll_runtime.transport.messages import Declined, Ended, SnapshotHead, SnapshotRequest
from atoll_runtime.transport.stream import Stream, explained
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import CONNECT_SECONDS
from atoll_runtime.transport.transport import Peer, TransportError
from atoll_runtime.transport.wire import WireError

Parts = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
"""Anchor, mu, nu."""


class Busy(TransportError):
    """A peer answered that it does not serve now. It may later."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A received part."""

    head: SnapshotHead
    anchor: NDArray[np.float32]
    mu: NDArray[np.float32]
    nu: NDArray[np.float32]


class Snapshots(Protocol):
    """The snapshots that a host sends to one client."""

    def __iter__(self) -> Iterator[tuple[SnapshotHead, Parts]]:
        """Yields heads with anchor, mu and nu."""

    def close(self) -> None:
        """Ends the iterator. Called once the client has gone, from another thread."""


class Source(Protocol):
    """Provides snapshots to serve."""

    def open(self, peer: Peer, request: SnapshotRequest) -> Snapshots | str:
        """Returns a stream for this client, or the reason to decline. Called from any thread."""


class PeerServer(Listener):
    """Serves one host's snapshots. Raises `OSError` when the port is taken."""

    def __init__(self, source: Source, tls: Tls, port: int) -> None:
        self._source, self._open = source, set[Snapshots]()
        super().__init__(tls, port, "snapshots")

    def close(self) -> None:
        """Ends all streams."""
        for snapshots in list(self._open):
            snapshots.close()
        super().close()

    def serve(self, stream: Stream, peer: Peer, request: Message) -> None:
        """See `Listener`."""
        if not isinstance(request, SnapshotRequest):
            raise WireError(f"{type(request).__name__} came instead of SnapshotRequest")
        snapshots = self._source.open(peer, request)
        if isinstance(snapshots, str):
            stream.send(Declined(snapshots))
            return
        self._open.add(snapshots)
        threading.Thread(target=_close_when_left, args=(stream, snapshots), daemon=True).start()
        try:
            for head, parts in snapshots:
                stream.send(head)
                for part in parts:
                    stream.write(memoryview(np.ascontiguousarray(part).view(np.uint8).data))
            stream.send(Ended())
        finally:
            self._open.discard(snapshots)
            stream.shut()


def _close_when_left(stream: Stream, snapshots: Snapshots) -> None:
    stream.until_left()
    snapshots.close()


class PeerClient:
    """A connection to one host of another unit; `name` is the unit's name, which the certificate must show."""

    def __init__(self, address: str, tls: Tls, name: str) -> None:
        self._address, self._tls, self._name = address, tls, name
        self._stream: Stream | None = None
        self._closed = threading.Event()

    def snapshot(self, request: SnapshotRequest, sizes: tuple[int, ...], seconds: float) -> Iterator[Piece]:
        """Yields the host's parts as they come, until `close` or until `seconds` have passed.

        Args:
            sizes: elements of each fragment.

        Raises:
            Busy: the host does not serve now.
            TransportError: the stream broke, was damaged, or took too long.
        """
        end, (host, _, port) = time.monotonic() + seconds, self._address.rpartition(":")
        try:
            self._stream = stream = Stream.connect(
                (host, int(port)), self._tls.identity(), self._name, min(CONNECT_SECONDS, seconds)
            )
            if self._closed.is_set():
                stream.shut()
            stream.send(request)
            while not isinstance(head := stream.receive(end - time.monotonic()), Ended):
                if isinstance(head, Declined):
                    raise Busy(f"{self._address}: {head.reason}")
                found = checked(head, sizes)
                yield Piece(found, *(_array(stream, found.stop - found.start) for _ in range(3)))
        except (OSError, WireError) as error:
            raise TransportError(explained(self._address, error)) from error
        finally:
            if self._stream is not None:
                self._stream.close()

    def close(self) -> None:
        """Ends the stream, from any thread."""
        self._closed.set()
        if self._stream is not None:
            self._stream.shut()


def _array(stream: Stream, elements: int) -> NDArray[np.float32]:
    array: NDArray[Any] = np.empty(elements, "<f4")
    stream.read_into(memoryview(array.view(np.uint8).data))
    return array


def checked(head: Message, sizes: tuple[int, ...]) -> SnapshotHead:
    """Returns the head. Raises `WireError` if it does not fit the layout."""
    if not isinstance(head, SnapshotHead) or not 0 <= head.number < len(sizes):
        raise WireError(f"{head} is no head of one of {len(sizes)} fragments")
    if not 0 <= head.start <= head.stop <= sizes[head.number] + MOST_PADDING:
        raise WireError(
            f"part [{head.start}, {head.stop}) of fragment {head.number}, which has {sizes[head.number]}"
        )
    return head
