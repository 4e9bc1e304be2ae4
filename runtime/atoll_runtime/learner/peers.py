"""A unit's side of seeding from a peer: which peers are asked, for how long, what happens when one fails, and how the
parts of all hosts of a peer form its state."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.checkpoint.units import Moments, tile
from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.snapshot import Capture
from atoll_runtime.protocol.fragments import MOST_PADDING, Array, Layout
from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.messages import (
    Declined,
    DirectoryReply,
    Ended,
    PeerAddress,
    SnapshotHead,
    SnapshotRequest,
)
from atoll_runtime.transport.stream import Stream, explained
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import CONNECT_SECONDS
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import WireError

ATTEMPTS = 3
"""Rounds through the directory, which may be incomplete (as after a restart of a shard), or all peers may be busy."""
POLL = 0.2

log = logging.getLogger(__name__)

Directory = Callable[[], Sequence[DirectoryReply]]
"""Returns each shard's answer. Raises `TransportError`."""


class Busy(TransportError):
    """A peer answered that it does not serve now. It may later."""


class PeerClient:
    """A connection to one host of another unit; `name` is the unit's name, which the certificate must show."""

    def __init__(self, address: str, tls: Tls, name: str) -> None:
        self._address, self._tls, self._name = address, tls, name
        self._stream: Stream | None = None
        self._closed = threading.Event()

    def snapshot(self, request: SnapshotRequest, sizes: tuple[int, ...], seconds: float) -> Iterator[Capture]:
        """Yields the host's parts as they come, until `close` or until `seconds` have passed.

        Args:
            sizes: elements of each fragment.

        Raises:
            Busy: the host does not serve now.
            TransportError: the stream broke, was damaged, or took too long.
        """
        end, (host, _, port) = time.monotonic() + seconds, self._address.rpartition(":")

        def left() -> float:
            """Seconds. A socket takes none that are not positive."""
            if (seconds := end - time.monotonic()) <= 0:
                raise TimeoutError
            return seconds

        try:
            self._stream = stream = Stream.connect(
                (host, int(port)), self._tls.identity(), self._name, min(CONNECT_SECONDS, left())
            )
            if self._closed.is_set():
                stream.shut()
            stream.send(request)
            while not isinstance(head := stream.receive(left()), Ended):
                if isinstance(head, Declined):
                    raise Busy(f"{self._address}: {head.reason}")
                found = _checked(head, sizes)
                yield Capture(found, *(_array(stream, found.stop - found.start) for _ in range(3)))
        # A peer says its address itself, so it may be none.
        except (OSError, WireError, ValueError, OverflowError) as error:
            raise TransportError(explained(self._address, error)) from error
        finally:
            if self._stream is not None:
                self._stream.close()

    def close(self) -> None:
        """Ends the stream, from any thread."""
        self._closed.set()
        if self._stream is not None:
            self._stream.shut()


Connect = Callable[[str, str], PeerClient]
"""Takes the unit's name and a host's address."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A peer's whole state: its anchors as θ, and its moments."""

    unit: str
    versions: tuple[int, ...]
    theta: dict[str, Array]
    moments: Moments


class Assembly:
    """Collects parts of all hosts of a peer. A fragment is complete when all hosts sent the same version."""

    def __init__(self, layout: Layout, hosts: int, least: Sequence[int]) -> None:
        self._layout, self._hosts, self._least = layout, hosts, tuple(least)
        self.missing = {number for number, fragment in enumerate(layout.fragments) if fragment.size > 0}
        self._parts: dict[int, dict[int, Capture]] = {number: {} for number in self.missing}
        self._versions = list(least)
        self._count = 0
        self._theta: dict[str, Array] = {}
        self._mu: dict[str, Array] = {}
        self._nu: dict[str, Array] = {}

    def add(self, host: int, capture: Capture) -> None:
        """Adds a part. Raises `TransportError` if it does not fit the others, is too old, or is not finite."""
        number = capture.head.number
        if number not in self.missing:
            return
        if capture.head.version < self._least[number]:
            raise TransportError(
                f"fragment {number} came at version {capture.head.version}, {self._least[number]} was asked for"
            )
        parts = self._parts[number]
        parts[host] = capture
        if len(parts) < self._hosts or len({part.head.version for part in parts.values()}) > 1:
            return
        size = self._layout.fragments[number].size
        for kind, tensors in (("anchor", self._theta), ("mu", self._mu), ("nu", self._nu)):
            held = [(part.head.start, part.head.stop, getattr(part, kind)) for part in parts.values()]
            try:
                flat = tile(held, size)
            except ValueError as error:
                raise TransportError(f"{kind} of fragment {number}: {error}") from error
            self._layout.unflatten(number, flat, tensors)
        self._versions[number] = capture.head.version
        self._count = max(self._count, *(part.head.count for part in parts.values()))
        self.missing.remove(number)
        del self._parts[number]

    def pulled(self, unit: str) -> Pulled:
        """The whole state; nothing may be missing."""
        return Pulled(unit, tuple(self._versions), self._theta, Moments(self._mu, self._nu, self._count))


@dataclass(frozen=True, slots=True)
class Peers:
    """Finds peers and pulls the state of one.

    Args:
        budget: seconds for all peers together; half of the default `startupSeconds` (1800). The other half is for the
            checkpoint, which is awaited for 600 s at most.
        patience: after this many seconds a peer is given up if the share of its fragments that it has sent is smaller
            than the share of its time that has passed. A peer sends at most one fragment in each of its steps.
        first_wait: seconds before the second round through the directory.
    """

    directory: Directory
    connect: Connect
    random: random.Random
    budget: float = 900.0
    patience: float = 60.0
    first_wait: float = 1.0

    def pull(self, unit: UnitContract, layout: Layout) -> tuple[Pulled | None, str]:
        """Returns the state of the first peer that sends all of it, or None, and the reason of the last failure.

        Peers that decline are asked again in the next round. Peers that fail are not.
        """
        end = time.monotonic() + self.budget
        reason = ""
        lost: set[str] = set()
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self.first_wait * 2 ** (attempt - 1) * self.random.uniform(0.5, 1.0))
            try:
                least, peers = candidates(self.directory(), unit.unit)
            except TransportError as error:
                reason = f"no directory: {error}"
                continue
            if not any(least):
                return None, "no peer is learning: nothing was merged yet"
            request = SnapshotRequest(unit.unit, unit.incarnation, layout.fingerprint, layout.shards, least)
            for peer in self.random.sample(peers, len(peers)):
                if peer.unit in lost or time.monotonic() >= end:
                    continue
                try:
                    return self._from(peer, request, layout, end), reason
                except TransportError as error:
                    log.warning("not seeded from %s: %s", peer.unit, error)
                    reason = f"{peer.unit}: {error}"
                    if not isinstance(error, Busy):
                        lost.add(peer.unit)
        return None, reason or "no peer is learning"

    def _from(self, peer: PeerAddress, request: SnapshotRequest, layout: Layout, end: float) -> Pulled:
        """Pulls from every host of one peer until `end`; one thread reads each host. Raises `TransportError`, including
        `Busy`."""
        assembly = Assembly(layout, len(peer.addresses), request.least)
        sizes = tuple(fragment.size for fragment in layout.fragments)
        clients = [self.connect(peer.unit, address) for address in peer.addresses]
        lock, fragments, begun = threading.Lock(), len(assembly.missing), time.monotonic()

        def read(host: int) -> None:
            for found in clients[host].snapshot(request, sizes, end - time.monotonic()):
                with lock:
                    assembly.add(host, found)
                    if not assembly.missing:
                        return
            raise TransportError(f"{peer.addresses[host]}: the stream ended too early")

        pool = ThreadPoolExecutor(len(clients), "peer")
        reads = [pool.submit(read, host) for host in range(len(clients))]
        try:
            while assembly.missing:
                for ended in wait(reads, POLL, FIRST_COMPLETED).done:
                    ended.result()
                took, came = time.monotonic() - begun, fragments - len(assembly.missing)
                if took > self.patience and came / fragments < took / (end - begun):
                    raise TransportError(
                        f"{came} of {fragments} fragments came in {took:.0f} s, {end - time.monotonic():.0f} s are left"
                    )
        finally:
            for client in clients:
                client.close()  # ends the reads
            pool.shutdown(wait=False)
        return assembly.pulled(peer.unit)


def candidates(replies: Sequence[DirectoryReply], unit: str) -> tuple[tuple[int, ...], list[PeerAddress]]:
    """The versions of every fragment, and the other units that serve snapshots and that all shards know."""
    versions = tuple(version for reply in replies for version in reply.versions)
    common = set(replies[0].peers).intersection(*(reply.peers for reply in replies[1:])) if replies else set()
    serving = [peer for peer in common if peer.unit != unit and peer.addresses and all(peer.addresses)]
    return versions, sorted(serving, key=lambda peer: peer.unit)


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
