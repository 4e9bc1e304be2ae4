"""The newcomer's side of seeding from a peer: which ones are asked, for how long, and the next one if it dies."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.pulled import Assembly, Pulled
from atoll_runtime.sync.fragments import Layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress
from atoll_runtime.transport.peer import Declined, Pace, PeerClient, Piece, SnapshotRequest
from atoll_runtime.transport.transport import TransportError

ATTEMPTS = 3
"""Rounds through the directory: it may not be there yet, or every peer may be busy."""
FIRST_WAIT = 1.0
BUDGET = 900.0
"""Seconds for all peers together, half of the default `startupSeconds` (1800): by its end the unit must have joined, be
seeded and be connected to the syncer. The other half is for the checkpoint, which is waited for 600 s at most."""
CONTACT = 10.0
"""Seconds until a host's first word, which is sent at once. gRPC alone takes 20 s to find that nobody is there."""
SILENCE = 60.0
"""Seconds without a word from a host. One whose steps are slow sends a word every 10 s (`serving.BEAT`)."""
LOST_PEERS = 4
"""Peers that may fail; by then the newcomer's own network is the likelier cause, and the checkpoint the better way."""
BACKLOG = 4
"""Parts that have come and are not looked at yet."""
NAMED = 3
"""Peers whose reasons are told."""
POLL = 0.2
"""Seconds between two looks at the clock."""

log = logging.getLogger(__name__)

Directory = Callable[[], Sequence[DirectoryReply]]
"""Each shard's answer. Raises `TransportError`."""
Connect = Callable[[str, str], PeerClient]
"""By the unit's name and a host's address."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; see the constants."""

    budget: float = BUDGET
    contact: float = CONTACT
    silence: float = SILENCE
    first_wait: float = FIRST_WAIT


@dataclass(frozen=True, slots=True)
class Peers:
    """How to find peers and how to reach them."""

    directory: Directory
    connect: Connect
    random: random.Random
    limits: Limits = Limits()

    def pull(self, unit: UnitContract, layout: Layout) -> tuple[Pulled | None, str]:
        """The state of the first peer that gives it whole, else None; and why others did not. Takes host 0 alone.

        Those that say no are asked again, `ATTEMPTS` times in all and after those that were not asked yet; those
        that fail are not.
        """
        end = time.monotonic() + self.limits.budget
        reasons: dict[str, str] = {}
        """By peer; the directory's has no name."""
        lost: set[str] = set()
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self.limits.first_wait * 2 ** (attempt - 1) * self.random.uniform(0.5, 1.0))
            try:
                least, peers = candidates(self.directory(), unit.unit)
            except TransportError as error:
                reasons[""] = f"no directory: {error}"
                continue
            if not any(least):
                return None, "no peer is learning: nothing was merged yet"
            reasons.pop("", None)
            if not peers:  # a shard that has just restarted counts none for a moment
                reasons[""] = "no peer is learning"
                continue
            request = SnapshotRequest(unit.unit, unit.incarnation, layout.fingerprint, layout.shards, least)
            shuffled = self.random.sample(peers, len(peers))
            for peer in sorted(shuffled, key=lambda peer: peer.unit in reasons):
                if peer.unit in lost:
                    continue
                if len(lost) >= LOST_PEERS or time.monotonic() >= end:
                    return None, told(reasons)
                try:
                    pulled = self._from(peer, request, layout, end)
                except TransportError as error:
                    log.warning("not seeded from %s: %s", peer.unit, error)
                    reasons[peer.unit] = f"{peer.unit}: {error}"
                    if not isinstance(error, Declined):
                        lost.add(peer.unit)
                else:
                    reasons.pop(peer.unit, None)
                    return pulled, told(reasons)
        return None, told(reasons)

    def _from(self, peer: PeerAddress, request: SnapshotRequest, layout: Layout, end: float) -> Pulled:
        """Every host of one peer, until `end`. Raises `TransportError`, `Declined` among them."""
        assembly = Assembly(layout, len(peer.addresses), request.least)
        clients = [self.connect(peer.unit, address) for address in peer.addresses]
        sizes = tuple(fragment.size for fragment in layout.fragments)
        with contextlib.closing(Streams(peer.addresses, clients, self.limits)) as streams:
            # the call's own deadline is for the peer: here the clock is looked at, which can say what is missing
            streams.start(request, sizes, end - time.monotonic() + self.limits.contact)
            while missing := len(assembly.missing):
                left = end - time.monotonic()
                if left <= 0:
                    raise TransportError(f"{missing} fragments are missing and the time for peers is over")
                came = streams.take()
                if isinstance(came, Pace):
                    _in_time(came, missing, left)
                elif came is not None:
                    assembly.add(*came)
        return assembly.pulled(peer.unit)


Came = tuple[int, Piece] | Pace | TransportError
"""A part with its host, a sign of life, or a stream's end."""


class Streams:
    """All hosts of one peer, read at once by a thread each."""

    def __init__(self, addresses: Sequence[str], clients: Sequence[PeerClient], limits: Limits) -> None:
        self._addresses, self._clients, self._limits = addresses, clients, limits
        self._come: queue.Queue[Came] = queue.Queue(BACKLOG)
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, request: SnapshotRequest, sizes: tuple[int, ...], seconds: float) -> None:
        """Asks every host; `sizes` of the fragments."""
        for host in range(len(self._clients)):
            work = functools.partial(self._read, host, request, sizes, seconds)
            self._threads.append(threading.Thread(target=work, name="peer", daemon=True))
            self._threads[-1].start()

    def take(self) -> tuple[int, Piece] | Pace | None:
        """What came next; None where nothing did for a moment.

        Raises:
            TransportError: a host failed, did not answer, or fell silent.
        """
        try:
            came = self._come.get(timeout=POLL)
        except queue.Empty:
            self._listen()
            return None
        if isinstance(came, TransportError):
            raise came
        return came

    def close(self) -> None:
        """Ends the streams and their threads."""
        self._over.set()
        for client in self._clients:
            client.close()
        for thread in self._threads:
            thread.join(5.0)

    def _listen(self) -> None:
        """Raises `TransportError` for a host that is not heard."""
        now = time.monotonic()
        for address, client in zip(self._addresses, self._clients, strict=True):
            if client.heard is None and now - self._begun > self._limits.contact:
                raise TransportError(f"{address}: no answer within {self._limits.contact:g} s")
            if client.heard is not None and now - client.heard > self._limits.silence:
                raise TransportError(f"{address}: silent for {self._limits.silence:g} s")

    def _read(self, host: int, request: SnapshotRequest, sizes: tuple[int, ...], seconds: float) -> None:
        try:
            for found in self._clients[host].snapshot(request, sizes, seconds):
                self._put(found if isinstance(found, Pace) else (host, found))
            self._put(TransportError(f"{self._addresses[host]}: the stream ended too early"))
        except TransportError as error:
            self._put(error)
        except ValueError as error:  # the channel was closed under it
            self._put(TransportError(str(error)))

    def _put(self, came: Came) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                return self._come.put(came, timeout=POLL)


def candidates(replies: Sequence[DirectoryReply], unit: str) -> tuple[tuple[int, ...], list[PeerAddress]]:
    """The versions of every fragment, and the other units that all shards count and that serve snapshots."""
    versions = tuple(version for reply in replies for version in reply.versions)
    common = set(replies[0].peers).intersection(*(reply.peers for reply in replies[1:])) if replies else set()
    serving = [peer for peer in common if peer.unit != unit and peer.addresses and all(peer.addresses)]
    return versions, sorted(serving, key=lambda peer: peer.unit)


def told(reasons: Mapping[str, str]) -> str:
    """Why peers did not give their state: the first few in words, of the others how many."""
    named, more = list(reasons.values())[:NAMED], len(reasons) - NAMED
    return "; ".join([*named, f"and of {more} more"] if more > 0 else named)


def _in_time(pace: Pace, missing: int, left: float) -> None:
    """Raises `Declined` for a peer whose steps are too slow: the checkpoint is not waited for in vain."""
    needed = missing * pace.step_seconds
    if needed > left:
        raise Declined(
            f"{missing} fragments at a step of {pace.step_seconds:.3g} s take {needed:.0f} s, {left:.0f} s are left"
        )
