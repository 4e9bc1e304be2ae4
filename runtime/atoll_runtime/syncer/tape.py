"""Writes a shard's event tape on its volume, from a thread of its own: the run never waits for it.

Best effort: a volume that fails ends the tape with one warning; one that is too slow leaves a gap, behind which a
new segment starts with a fresh snapshot. Nothing is synced, so a lost machine may lose the last records.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atoll_runtime.contract import TapeDepth
from atoll_runtime.protocol.effects import Effect, Member
from atoll_runtime.protocol.encoding import TapeError, encode
from atoll_runtime.protocol.events import Event, MergeFailed, Persisted
from atoll_runtime.protocol.fragments import Array
from atoll_runtime.protocol.frames import Buffer, checksum
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.tape import (
    Closed,
    Computed,
    Contributed,
    Decided,
    Facts,
    Opening,
    Share,
    decisions,
)
from atoll_runtime.syncer.segments import Segments
from atoll_runtime.syncer.state import Version

log = logging.getLogger(__name__)

LIMITS: dict[TapeDepth, int] = {"Decisions": 128 << 20, "Contributions": 4 << 30}
"""Bytes of a whole tape, by depth."""
SEGMENTS = 4
"""A segment is full when a quarter of the limit stands behind its snapshot."""
BACKLOG = 256 << 20
"""Bytes that may wait for the disk, and one record more; beyond that, records are left out."""
CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Snapshot:
    """The shard between two events. The arrays are never written to afterwards."""

    machine: Syncer
    now: float
    """Seconds of the machine's clock."""
    fragments: Sequence[Version]
    """Durable versions, as `State.snapshot()` gives them."""


@dataclass(frozen=True)
class Job:
    """A record for the writer."""

    head: bytes | Callable[[], bytes]
    """A function where checksums of arrays are left to the writer."""
    bodies: tuple[Buffer, ...]
    opens: bool
    """It starts a segment."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        head = len(self.head) if isinstance(self.head, bytes) else 0
        return head + sum(memoryview(body).nbytes for body in self.bodies)


class Tape:
    """Open for one life of a process. Calls come from one thread; all but `close` never wait for the disk."""

    def __init__(
        self, folder: Path, depth: TapeDepth, limit: int | None = None, backlog: int = BACKLOG
    ) -> None:
        """`folder` is made when it is not there; `limit`, in bytes, replaces the default of the depth."""
        self._folder, self._depth, self._backlog = folder, depth, backlog
        self._limit = LIMITS[depth] if limit is None else limit
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._left = 0
        """Bytes until this segment is full."""
        self._recording = self._failed = self._gap = False
        self._pending: dict[RoundId, list[Job]] = {}
        """Merges that are not durable: a new segment needs them again, since its snapshot is of before them."""
        self._thread: threading.Thread | None = None

    def begin(self, facts: Facts, snapshot: Callable[[], Snapshot]) -> None:
        """Starts the tape. `snapshot` is called now, and from `event` whenever a new segment is needed."""
        self._facts, self._snapshot = facts, snapshot
        try:
            segments = Segments(self._folder, self._limit)
        except OSError as error:
            self._fail(error)
            return
        self._limit = segments.limit
        size = 8 * facts.layout.size
        if self._depth == "Contributions" and size > self._limit // SEGMENTS:
            log.warning(
                "the event tape records decisions alone: a snapshot of the model takes %d bytes, and the tape's limit "
                "of %d on this volume leaves %d for one",
                *(size, self._limit, self._limit // SEGMENTS),
            )
            self._depth = "Decisions"
        self._thread = threading.Thread(target=self._write, args=(segments,), name="tape", daemon=True)
        self._thread.start()
        self._recording = True
        self._open("Started")

    def event(self, event: Event, now: float, effects: Sequence[Effect]) -> None:
        """What `machine.handle(event, now)` gave: call it at once, before an effect is carried out."""
        if not self._recording or self._failed:
            self._pending.clear()
            return
        if isinstance(event, Persisted | MergeFailed):
            self._pending.pop(event.round, None)
        if self._gap:
            if not self._waiting:
                self._gap = False
                self._open("Gap")  # the snapshot is of after this event
            return
        self._put(lambda: encode(Decided(now, event, decisions(effects))))
        if self._left <= 0:
            self._open("Full")

    def contributions(
        self,
        round_id: RoundId,
        members: tuple[Member, ...],
        parts: Mapping[tuple[str, int], tuple[int, Buffer]],
    ) -> None:
        """What goes into a merge: by (unit, host), the first element and the body as it is merged."""
        if not self._recording or self._failed or self._depth != "Contributions":
            return
        units = {member.unit for member in members}
        chosen = [(*key, *parts[key]) for key in sorted(parts) if key[0] in units]
        shares = tuple(Share(unit, host, start, len(body)) for unit, host, start, body in chosen)
        record = Contributed(round_id, members, shares)
        job = self._put(lambda: encode(record), tuple(body for *_, body in chosen))
        self._pending[round_id] = [job]

    def merged(self, round_id: RoundId, theta: Array, momentum: Array) -> None:
        """What came out: call it before `Merged` is handed to the machine."""
        if round_id in self._pending:

            def head() -> bytes:
                return encode(Computed(round_id, checksum(theta.data), checksum(momentum.data)))

            self._pending[round_id].append(self._put(head, later=True))

    def close(self) -> None:
        """Writes what waits, for at most `CLOSE_SECONDS`. Blocks: not for an event loop."""
        if self._thread is None or not self._recording:
            return
        if not self._gap:
            fragments = tuple(self._snapshot().fragments)

            def head() -> bytes:
                thetas = tuple(checksum(each.theta.data) for each in fragments)
                momenta = tuple(checksum(each.momentum.data) for each in fragments)
                return encode(Closed(tuple(each.version for each in fragments), thetas, momenta))

            self._put(head, later=True)
        self._recording = False
        self._jobs.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("the event tape is not written to its end: the volume is too slow")

    def _open(self, why: Literal["Started", "Full", "Gap"]) -> None:
        shot = self._snapshot()
        versions = tuple(each.version for each in shot.fragments)
        opening = Opening(self._facts, self._depth, shot.machine, versions, shot.now, time.time(), why)
        arrays = tuple(array.data for each in shot.fragments for array in (each.theta, each.momentum))
        whole = self._depth == "Contributions"
        self._put(lambda: encode(opening), arrays if whole else (), opens=True)
        self._left = self._limit // SEGMENTS
        for jobs in self._pending.values():
            for job in jobs:
                self._hand_over(job)

    def _put(
        self,
        head: Callable[[], bytes],
        bodies: tuple[Buffer, ...] = (),
        *,
        later: bool = False,
        opens: bool = False,
    ) -> Job:
        """Encodes now, since the machine goes on, or in the writer, where checksums of arrays are needed."""
        try:
            job = Job(head if later else head(), bodies, opens)
        except TapeError as error:
            self._fail(error)
            job = Job(b"", (), opens)
        self._hand_over(job)
        return job

    def _hand_over(self, job: Job) -> None:
        if self._failed or self._gap:
            return
        if self._waiting > self._backlog:
            self._gap = True
            log.warning("the volume is slower than the run: the event tape has a gap")
            return
        self._left -= job.size
        with self._lock:
            self._waiting += job.size
        self._jobs.put(job)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            log.warning("the event tape ends here, the run goes on: %s", error)
        self._failed = True

    def _write(self, segments: Segments) -> None:
        """The writer thread. After a failure it only takes jobs away."""
        while (job := self._jobs.get()) is not None:
            try:
                if not self._failed:
                    if job.opens:
                        segments.open()
                    segments.append(job.head if isinstance(job.head, bytes) else job.head(), job.bodies)
                    if self._jobs.empty():
                        segments.flush()
            except OSError as error:
                self._fail(error)
            with self._lock:
                self._waiting -= job.size
        try:
            segments.close()
        except OSError as error:
            self._fail(error)
