"""A unit's side of seeding from a peer: which peers are asked, for how long, what happens when one fails, and how the
parts of all hosts of a peer form its state."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.checkpoint.units import Moments
from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.snapshot import Capture
from atoll_runtime.protocol.fragments import MOST_PADDING, Array, Layout
from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.messages import (
    Declined,
    DirectoryRequest,
    PeerAddress,
    SnapshotHead,
    SnapshotRequest,
)
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.stream import Stream, explained
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import CONNECT_SECONDS
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import WireError

PATIENCE = 60.0
"""After this many seconds a peer is given up if the share of its fragments that it has sent is smaller than the share
of its time that has passed. A peer sends at most one fragment in each of its steps."""
POLL = 0.2

log = logging.getLogger(__name__)


class PeerClient:
    """A connection to one host of another unit; `name` is the unit's name, which the certificate must show."""

    def __init__(self, address: str, tls: Tls, name: str) -> None:
        self._address, self._tls, self._name = address, tls, name
        self._stream: Stream | None = None
        self._closed = False

    def snapshot(self, request: SnapshotRequest, sizes: tuple[int, ...], seconds: float) -> Iterator[Capture]:
        """Yields the host's parts as they come, until `close`.

        Args:
            sizes: elements of each fragment.
            seconds: the longest wait for the next part.

        Raises:
            TransportError: the host declines, or the stream broke, was damaged, or was silent for too long.
        """
        host, _, port = self._address.rpartition(":")
        try:
            name, patience = self._name, min(CONNECT_SECONDS, seconds)
            with closing(Stream.connect((host, int(port)), self._tls.identity(), name, patience)) as stream:
                self._stream = stream
                if self._closed:
                    stream.shut()
                stream.send(request)
                while True:
                    head = stream.receive(seconds)
                    if isinstance(head, Declined):
                        raise TransportError(f"{self._address}: {head.reason}")
                    found = _checked(head, sizes)
                    yield Capture(found, *(_array(stream, found.stop - found.start) for _ in range(3)))
        # A peer says its address itself, so it may be none.
        except (OSError, WireError, ValueError, OverflowError) as error:
            raise TransportError(explained(self._address, error)) from error

    def close(self) -> None:
        """Ends the stream, from any thread."""
        self._closed = True
        if self._stream is not None:
            self._stream.shut()


class Pulled:
    """A peer's state as it arrives: its anchors as θ, and its moments. A fragment is complete when all hosts have sent
    the same version of it."""

    def __init__(self, peer: PeerAddress, layout: Layout, least: Sequence[int]) -> None:
        self.unit = peer.unit
        self.versions = list(least)
        self.lineages: tuple[str, ...] = ()
        """The lineages of the versions, by shard."""
        self.theta: dict[str, Array] = {}
        self.moments = Moments({}, {}, 0)
        self.missing = {number for number, fragment in enumerate(layout.fragments) if fragment.size > 0}
        self._layout, self._hosts, self._least = layout, len(peer.addresses), tuple(least)
        self._parts: dict[int, dict[int, Capture]] = {number: {} for number in self.missing}

    def add(self, host: int, capture: Capture) -> None:
        """Adds a part. Raises `TransportError` if it does not fit the others, is too old, or is not finite."""
        number, version = capture.head.number, capture.head.version
        if number not in self.missing:
            return
        if version < self._least[number]:
            raise TransportError(
                f"fragment {number} came at version {version}, {self._least[number]} was asked for"
            )
        parts = self._parts[number]
        parts[host] = capture
        if len(parts) < self._hosts or len({part.head.version for part in parts.values()}) > 1:
            return
        moments, size = self.moments, self._layout.fragments[number].size
        for kind, tensors in (("anchor", self.theta), ("mu", moments.mu), ("nu", moments.nu)):
            held = [(part.head.start, part.head.stop, getattr(part, kind)) for part in parts.values()]
            try:
                flat = _tile(held, size)
            except ValueError as error:
                raise TransportError(f"{kind} of fragment {number}: {error}") from error
            self._layout.unflatten(number, flat, tensors)
        self.versions[number] = version
        count = max(moments.count, *(part.head.count for part in parts.values()))
        self.moments = Moments(moments.mu, moments.nu, count)
        self.missing.remove(number)
        del self._parts[number]


def pull(
    unit: UnitContract, layout: Layout, networks: Sequence[TlsNetwork], tls: Tls, budget: float
) -> tuple[Pulled | None, str]:
    """Asks each peer once, in any order. Returns the state of the first one that sends all of it, or None, and the
    reason of the last failure.

    Args:
        networks: to all shards, which know the peers.
        budget: seconds for all peers together.
    """
    end, reason = time.monotonic() + budget, ""
    asking = DirectoryRequest(unit.unit, unit.incarnation)
    try:
        replies = [network.directory(asking) for network in networks]
    except TransportError as error:
        return None, f"no directory: {error}"
    least = tuple(version for reply in replies for version in reply.versions)
    if not any(least):
        return None, "no peer is learning: nothing was merged yet"
    request = SnapshotRequest(unit.unit, unit.incarnation, layout.fingerprint, layout.shards, least)
    known = set.intersection(*(set(reply.peers) for reply in replies))
    peers = [peer for peer in known if peer.unit != unit.unit and peer.addresses and all(peer.addresses)]
    random.shuffle(peers)
    for peer in peers:
        if time.monotonic() < end:
            try:
                pulled = _from(peer, request, layout, tls, end)
                pulled.lineages = tuple(reply.lineage for reply in replies)
                return pulled, reason
            except TransportError as error:
                log.warning("not seeded from %s: %s", peer.unit, error)
                reason = f"{peer.unit}: {error}"
    return None, reason or "no peer is learning"


def _from(peer: PeerAddress, request: SnapshotRequest, layout: Layout, tls: Tls, end: float) -> Pulled:
    """Pulls from every host of one peer until `end`; one thread reads each host. Raises `TransportError`."""
    pulled, sizes = Pulled(peer, layout, request.least), tuple(each.size for each in layout.fragments)
    clients = [PeerClient(address, tls, peer.unit) for address in peer.addresses]
    lock, fragments, begun = threading.Lock(), len(pulled.missing), time.monotonic()

    def read(host: int) -> None:
        for found in clients[host].snapshot(request, sizes, end - begun):
            with lock:
                pulled.add(host, found)
                if not pulled.missing:
                    return

    pool = ThreadPoolExecutor(len(clients), "peer")
    reads = [pool.submit(read, host) for host in range(len(clients))]
    try:
        while pulled.missing:
            for ended in wait(reads, POLL, FIRST_COMPLETED).done:
                ended.result()
            took, came = time.monotonic() - begun, fragments - len(pulled.missing)
            if took > min(PATIENCE, end - begun) and came / fragments < took / (end - begun):
                raise TransportError(
                    f"{came} of {fragments} fragments came in {took:.0f} of {end - begun:.0f} s"
                )
    finally:
        for client in clients:
            client.close()  # ends the reads
        pool.shutdown(wait=False)
    return pulled


def _tile(parts: list[tuple[int, int, Array]], size: int) -> Array:
    """`size` elements from (start, stop, values) of all hosts, which must be contiguous. The rest is padding. Raises
    `ValueError` for a gap, an overlap, a part with another length than its bounds, or a value that is not finite."""
    flat, filled = np.empty(size, np.float32), 0
    for start, stop, values in sorted(parts, key=lambda part: part[:2]):
        if start != filled or values.shape != (stop - start,):
            raise ValueError(f"{values.size} elements for [{start}, {stop}) after {filled}")
        end = min(stop, size)
        flat[start:end] = values[: max(0, end - start)]
        filled = stop
    if filled < size:
        raise ValueError(f"{filled} of {size} elements are there")
    if not np.isfinite(flat).all():
        raise ValueError("a value is not finite")
    return flat


def _array(stream: Stream, elements: int) -> NDArray[np.float32]:
    array: NDArray[Any] = np.empty(elements, "<f4")
    stream.read_into(memoryview(array.view(np.uint8).data))
    return array


def _checked(head: Message, sizes: tuple[int, ...]) -> SnapshotHead:
    """Returns the head. Raises `WireError` if it does not fit the layout."""
    if not isinstance(head, SnapshotHead) or not 0 <= head.number < len(sizes):
        raise WireError(f"{head} is no head of one of {len(sizes)} fragments")
    if not 0 <= head.start <= head.stop <= sizes[head.number] + MOST_PADDING:
        raise WireError(
            f"part [{head.start}, {head.stop}) of fragment {head.number}, which has {sizes[head.number]}"
        )
    return head
