"""A unit's side of seeding from a peer: which peers are asked, for how long, and what happens when one fails."""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.pulled import Assembly, Pulled
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress
from atoll_runtime.transport.peer import Declined, Pace, PeerClient, Piece, SnapshotRequest
from atoll_runtime.transport.transport import TransportError

ATTEMPTS = 3
"""Rounds through the directory: it may be incomplete, or every peer may be busy."""
PATIENT_STEPS = 4
"""A peer may be silent for so many of its steps, however long they are: it sends fragments between two steps."""
LOST_PEERS = 4
"""Peers that may fail. After so many the unit's own network is the likelier cause."""
BACKLOG = 4
"""Parts received and not yet assembled."""
NAMED = 3
"""Peers whose reasons are reported."""
POLL = 0.2

log = logging.getLogger(__name__)

Directory = Callable[[], Sequence[DirectoryReply]]
"""Returns each shard's answer. Raises `TransportError`."""
Connect = Callable[[str, str], PeerClient]
"""Takes the unit's name and a host's address."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Finds peers and pulls the state of one.

    Args:
        budget: seconds for all peers together; half of the default `startupSeconds` (1800). The other half is for the
            checkpoint, which is awaited for 600 s at most.
        patience: a peer is given up when none of its hosts sends a byte for so many seconds.
        first_wait: seconds before the second round through the directory.
    """

    directory: Directory
    connect: Connect
    random: random.Random
    budget: float = 900.0
    patience: float = 60.0
    first_wait: float = 1.0

    def pull(self, unit: UnitContract, layout: Layout) -> tuple[Pulled | None, str]:
        """Returns the state of the first peer that sends all of it, or None; and why other peers did not.

        Peers that decline are asked again in the next round, after those not asked yet. Peers that fail are not.
        """
        end = time.monotonic() + self.budget
        reasons: dict[str, str] = {}
        """By peer; the directory's own has an empty name."""
        lost: set[str] = set()
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self.first_wait * 2 ** (attempt - 1) * self.random.uniform(0.5, 1.0))
            try:
                least, peers = candidates(self.directory(), unit.unit)
            except TransportError as error:
                reasons[""] = f"no directory: {error}"
                continue
            if not any(least):
                return None, "no peer is learning: nothing was merged yet"
            reasons.pop("", None)
            if not peers:  # a shard that has just restarted knows none for a moment
                reasons[""] = "no peer is learning"
                continue
            request = SnapshotRequest(unit.unit, unit.incarnation, layout.fingerprint, layout.shards, least)
            shuffled = self.random.sample(peers, len(peers))
            for peer in sorted(shuffled, key=lambda peer: peer.unit in reasons):
                if peer.unit in lost:
                    continue
                if len(lost) >= LOST_PEERS or time.monotonic() >= end:
                    return None, summary(reasons)
                try:
                    pulled = self._from(peer, request, layout, end)
                except TransportError as error:
                    log.warning("not seeded from %s: %s", peer.unit, error)
                    reasons[peer.unit] = f"{peer.unit}: {error}"
                    if not isinstance(error, Declined):
                        lost.add(peer.unit)
                else:
                    reasons.pop(peer.unit, None)
                    return pulled, summary(reasons)
        return None, summary(reasons)

    def _from(self, peer: PeerAddress, request: SnapshotRequest, layout: Layout, end: float) -> Pulled:
        """Pulls from every host of one peer until `end`. Raises `TransportError`, including `Declined`."""
        assembly = Assembly(layout, len(peer.addresses), request.least)
        sizes = tuple(fragment.size for fragment in layout.fragments)
        with contextlib.closing(self._receive(peer, request, sizes, end)) as received:
            while assembly.missing:
                host, found = next(received)
                if isinstance(found, Pace):
                    _require_in_time(found, len(assembly.missing), end - time.monotonic())
                else:
                    assembly.add(host, found)
        return assembly.pulled(peer.unit)

    def _receive(
        self, peer: PeerAddress, request: SnapshotRequest, sizes: tuple[int, ...], end: float
    ) -> Generator[tuple[int, Piece | Pace], None, None]:
        """Yields what the peer's hosts send, with the host's number, without end. One thread reads each host.

        Raises:
            TransportError: a host failed, or nothing came within the patience.
        """
        clients = [self.connect(peer.unit, address) for address in peer.addresses]
        arrived: queue.Queue[tuple[int, Piece | Pace] | TransportError] = queue.Queue(BACKLOG)
        over = threading.Event()

        def put(item: tuple[int, Piece | Pace] | TransportError) -> None:
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    return arrived.put(item, timeout=POLL)

        def read(host: int) -> None:
            try:
                for found in clients[host].snapshot(request, sizes, end - time.monotonic()):
                    put((host, found))
                put(TransportError(f"{peer.addresses[host]}: the stream ended too early"))
            except TransportError as error:
                put(error)
            except ValueError:
                return  # the channel was closed: this peer is no longer read

        threads = [
            threading.Thread(target=read, args=(host,), name="peer", daemon=True)
            for host in range(len(clients))
        ]
        for thread in threads:
            thread.start()
        patience = self.patience
        try:
            while True:
                try:
                    item = arrived.get(timeout=POLL)
                except queue.Empty:
                    if time.monotonic() - max(client.heard for client in clients) > patience:
                        raise TransportError(f"nothing came for {patience:g} s") from None
                    continue
                if isinstance(item, TransportError):
                    raise item
                if isinstance(item[1], Pace):
                    patience = max(self.patience, PATIENT_STEPS * item[1].step_seconds)
                yield item
        finally:
            over.set()
            for client in clients:
                client.close()
            for thread in threads:
                thread.join(5.0)


def candidates(replies: Sequence[DirectoryReply], unit: str) -> tuple[tuple[int, ...], list[PeerAddress]]:
    """The versions of every fragment, and the other units that serve snapshots and that all shards know."""
    versions = tuple(version for reply in replies for version in reply.versions)
    common = set(replies[0].peers).intersection(*(reply.peers for reply in replies[1:])) if replies else set()
    serving = [peer for peer in common if peer.unit != unit and peer.addresses and all(peer.addresses)]
    return versions, sorted(serving, key=lambda peer: peer.unit)


def summary(reasons: Mapping[str, str]) -> str:
    """Why peers did not send their state: the first few reasons, and the number of the others."""
    named, more = list(reasons.values())[:NAMED], len(reasons) - NAMED
    return "; ".join([*named, f"and {more} more"] if more > 0 else named)


def _require_in_time(pace: Pace, missing: int, left: float) -> None:
    """Raises `Declined` if the peer sends one fragment per step and its steps are too long for the time left."""
    needed = missing * pace.step_seconds
    if needed > left:
        raise Declined(
            f"{missing} fragments at a step of {pace.step_seconds:.3g} s take {needed:.0f} s, {left:.0f} s are left"
        )
