"""The newcomer's side of seeding from a peer: which one, all its hosts at once, and the next one if it dies."""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atoll_runtime.checkpoint.units import Moments, tile
from atoll_runtime.contract import UnitContract
from atoll_runtime.sync.fragments import Array, Layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress
from atoll_runtime.transport.peer import PeerClient, Piece, SnapshotRequest
from atoll_runtime.transport.transport import TransportError

ATTEMPTS = 3
"""Rounds through the directory: it may not be there yet, or every peer may be busy."""
FIRST_WAIT = 1.0
DEADLINE = 300.0
"""Seconds for one peer, from the request to the last part."""
BACKLOG = 4
"""Parts that have come and are not looked at yet."""

log = logging.getLogger(__name__)

Directory = Callable[[], Sequence[DirectoryReply]]
"""Each shard's answer. Raises `TransportError`."""
Connect = Callable[[str, str], PeerClient]
"""By the unit's name and a host's address."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A peer's state: the anchors as θ, whole."""

    unit: str
    versions: tuple[int, ...]
    theta: dict[str, Array]
    moments: Moments


@dataclass(frozen=True, slots=True)
class Peers:
    """How to find peers and how to reach them."""

    directory: Directory
    connect: Connect
    random: random.Random
    deadline: float = DEADLINE
    first_wait: float = FIRST_WAIT

    def pull(self, unit: UnitContract, layout: Layout) -> tuple[Pulled | None, str]:
        """The state of the first peer that gives it whole, else None; and why others did not. Takes host 0 alone."""
        reasons: list[str] = []
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self.first_wait * 2 ** (attempt - 1) * self.random.uniform(0.5, 1.0))
            try:
                least, peers = candidates(self.directory(), unit.unit)
            except TransportError as error:
                reasons = [f"no directory: {error}"]
                continue
            if not any(least):
                return None, "no peer is learning: nothing was merged yet"
            if not peers:  # a shard that has just restarted counts none for a moment
                reasons = ["no peer is learning"]
                continue
            reasons.clear()
            for peer in self.random.sample(peers, len(peers)):
                request = SnapshotRequest(
                    unit.unit, unit.incarnation, layout.fingerprint, layout.shards, least
                )
                try:
                    return self._from(peer, request, layout), "; ".join(reasons)
                except TransportError as error:
                    log.warning("not seeded from %s: %s", peer.unit, error)
                    reasons.append(f"{peer.unit}: {error}")
        return None, "; ".join(reasons)

    def _from(self, peer: PeerAddress, request: SnapshotRequest, layout: Layout) -> Pulled:
        """Every host of one peer. Raises `TransportError`."""
        clients = [self.connect(peer.unit, address) for address in peer.addresses]
        come: queue.Queue[tuple[int, Piece | TransportError]] = queue.Queue(BACKLOG)
        over = threading.Event()
        sizes = tuple(fragment.size for fragment in layout.fragments)

        def put(host: int, value: Piece | TransportError) -> None:
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    return come.put((host, value), timeout=0.2)

        def read(host: int) -> None:
            try:
                for piece in clients[host].snapshot(request, sizes, self.deadline):
                    put(host, piece)
                put(host, TransportError(f"{peer.addresses[host]}: the stream ended too early"))
            except (TransportError, ValueError) as error:  # ValueError: the channel was closed under it
                put(host, TransportError(str(error)))

        threads = [threading.Thread(target=read, args=(host,), daemon=True) for host in range(len(clients))]
        for thread in threads:
            thread.start()
        assembly, end = Assembly(layout, len(clients), request.least), time.monotonic() + self.deadline
        try:
            while assembly.missing:
                host, value = come.get(timeout=max(0.0, end - time.monotonic()))
                if isinstance(value, TransportError):
                    raise value
                assembly.add(host, value)
        except queue.Empty as error:
            raise TransportError(
                f"{len(assembly.missing)} fragments are missing after {self.deadline:g} s"
            ) from error
        finally:
            over.set()
            for client in clients:
                client.close()
            for thread in threads:
                thread.join(5.0)
        return assembly.pulled(peer.unit)


class Assembly:
    """Parts of all hosts of a peer, put together; a fragment is taken when they agree on its version."""

    def __init__(self, layout: Layout, hosts: int, least: Sequence[int]) -> None:
        self._layout, self._hosts, self._least = layout, hosts, tuple(least)
        self.missing = {number for number, fragment in enumerate(layout.fragments) if fragment.size > 0}
        self._parts: dict[int, dict[int, Piece]] = {number: {} for number in self.missing}
        self._versions = list(least)
        self._count = 0
        self._theta: dict[str, Array] = {}
        self._mu: dict[str, Array] = {}
        self._nu: dict[str, Array] = {}

    def add(self, host: int, piece: Piece) -> None:
        """Raises `TransportError` for parts that do not fit together, are too old, or are not finite."""
        number = piece.head.number
        if number not in self.missing:
            return
        if piece.head.version < self._least[number]:
            raise TransportError(
                f"fragment {number} came at version {piece.head.version}, {self._least[number]} was asked for"
            )
        parts = self._parts[number]
        parts[host] = piece
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
        self._versions[number] = piece.head.version
        self._count = max(self._count, *(part.head.count for part in parts.values()))
        self.missing.remove(number)
        del self._parts[number]

    def pulled(self, unit: str) -> Pulled:
        """The whole, when nothing is missing."""
        return Pulled(unit, tuple(self._versions), self._theta, Moments(self._mu, self._nu, self._count))


def candidates(replies: Sequence[DirectoryReply], unit: str) -> tuple[tuple[int, ...], list[PeerAddress]]:
    """The versions of every fragment, and the other units that all shards count and that serve snapshots."""
    versions = tuple(version for reply in replies for version in reply.versions)
    common = set(replies[0].peers).intersection(*(reply.peers for reply in replies[1:])) if replies else set()
    serving = [peer for peer in common if peer.unit != unit and peer.addresses and all(peer.addresses)]
    return versions, sorted(serving, key=lambda peer: peer.unit)
