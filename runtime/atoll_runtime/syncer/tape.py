"""Writes a shard's event tape to its volume, from a thread of its own, so that the run never waits for it.

The tape is best effort. A volume that fails ends the tape with one warning. A volume that is too slow causes a gap,
after which a new segment starts with a new snapshot. Nothing is synced, so a lost machine may lose the last records.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from atoll_runtime.contract import TapeDepth
from atoll_runtime.interfaces import Disk
from atoll_runtime.payloads import HostPart
from atoll_runtime.protocol.effects import Effect, Merge
from atoll_runtime.protocol.events import Event, MergeFailed, Persisted
from atoll_runtime.protocol.fragments import Array
from atoll_runtime.protocol.frames import FRAME, Buffer, checksum
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.tape import (
    Computed,
    Contributed,
    Decided,
    Entry,
    Facts,
    Opening,
    Share,
    TapeError,
    decisions,
    encode,
)
from atoll_runtime.syncer import records
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.state import State

log = logging.getLogger(__name__)

LIMITS: dict[TapeDepth, int] = {"Decisions": 128 << 20, "Contributions": 4 << 30}
"""Bytes of a whole tape, by depth."""
SEGMENTS = 4
"""A segment is full when its records after the snapshot take a quarter of the limit."""
BACKLOG = 256 << 20
"""Bytes that may wait for the disk, plus one record and one snapshot. Beyond that, records are left out."""
CLOSE_SECONDS = 10.0
PATTERN = "tape-*.atl"
"""Names of segments. Their numbers have eight digits, so they are in the order of their names."""


def tape_share(limit: int, volume: int) -> int:
    """The most bytes of a tape with this limit on a volume of so many: a quarter, because the journal needs more."""
    return min(limit, volume // 4)


@dataclass(frozen=True)
class Job:
    """A record for the writer."""

    head: Callable[[], bytes]
    """Returns the encoded record. The writer calls it, so checksums of arrays are computed on the writer's thread."""
    bodies: tuple[Buffer, ...]
    opens: bool
    """The record starts a segment."""
    size: int
    """Approximate bytes that wait, and that count for its segment. Those of a snapshot do not."""


class Tape:
    """Open for the life of one process. All calls come from one thread. Only `begin` and `close` use the disk there."""

    def __init__(
        self,
        folder: Path,
        depth: TapeDepth,
        limit: int | None = None,
        backlog: int = BACKLOG,
        disk: Disk = LOCAL,
    ) -> None:
        """`folder` is created if it does not exist. `limit`, in bytes, replaces the default of the depth."""
        self._folder, self._depth, self._backlog, self._disk = folder, depth, backlog, disk
        self._limit = LIMITS[depth] if limit is None else limit
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._left = 0
        """Bytes until this segment is full."""
        self._failed = self._gap = False
        self._pending: dict[RoundId, list[Job]] = {}
        """Records of merges that are not durable. A new segment repeats them, because its snapshot lacks the merges."""
        self._thread: threading.Thread | None = None

    @property
    def _records(self) -> bool:
        return self._thread is not None and not self._failed

    def begin(self, facts: Facts, machine: Syncer, state: State, clock: Callable[[], float]) -> None:
        """Starts the tape. Each segment starts with `machine` and `state` as they are then. `clock`: the machine's."""
        self._facts, self._machine, self._state, self._clock = facts, machine, state, clock
        try:
            self._disk.make(self._folder)
            self._limit = tape_share(self._limit, self._disk.volume(self._folder))
        except OSError as error:
            self._fail(error)
            return
        size = 8 * facts.layout.size
        if self._depth == "Contributions" and size > self._limit // SEGMENTS:
            log.warning(
                "the event tape records decisions alone: a snapshot of the model takes %d bytes, and the tape's limit "
                "of %d on this volume leaves %d for one",
                *(size, self._limit, self._limit // SEGMENTS),
            )
            self._depth = "Decisions"
        self._thread = threading.Thread(target=self._write, name="tape", daemon=True)
        self._thread.start()
        self._open("Started")

    def event(self, event: Event, now: float, effects: Sequence[Effect]) -> None:
        """Records what `machine.handle(event, now)` returned. Call it at once, before any effect is carried out."""
        if isinstance(event, Persisted | MergeFailed):
            self._pending.pop(event.round, None)
        if not self._records:
            return
        if not self._gap:
            self._put(lambda: Decided(now, event, decisions(effects)))
            if self._left <= 0:
                self._open("Full")
        elif not self._waiting:
            self._gap = False
            self._open("Gap")  # the snapshot includes this event

    def contributions(self, merge: Merge, parts: Mapping[tuple[str, int], HostPart]) -> None:
        """Records the input of a merge: its parts, by unit and host."""
        if not self._records or self._depth != "Contributions":
            return
        chosen = [(*key, parts[key]) for key in sorted(parts)]
        shares = tuple(Share(unit, host, part.start, len(part.body)) for unit, host, part in chosen)
        bodies = tuple(part.body for *_, part in chosen)
        self._pending[merge.round] = [self._put(lambda: Contributed(merge.round, shares), bodies)]

    def merged(self, round_id: RoundId, theta: Array, momentum: Array) -> None:
        """Records the output of a merge. Call it before `Merged` is handed to the machine."""
        if round_id in self._pending:

            def head() -> bytes:
                return encode(Computed(round_id, checksum(theta.data), checksum(momentum.data)))

            job = Job(head, (), opens=False, size=0)
            self._pending[round_id].append(job)
            self._hand_over(job)

    def close(self) -> None:
        """Writes what is waiting, for at most `CLOSE_SECONDS`. It blocks, so do not call it on an event loop."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(CLOSE_SECONDS)
            if thread.is_alive():
                log.warning("the event tape is not written to its end: the volume is too slow")

    def _open(self, why: Literal["Started", "Full", "Gap"]) -> None:
        arrays = tuple(array.data for each in self._state.fragments for array in (each.theta, each.momentum))

        def opening() -> Opening:
            machine, versions = msgspec.Raw(encode(self._machine)), self._state.versions
            return Opening(self._facts, self._depth, machine, versions, self._clock(), why)

        self._put(opening, arrays if self._depth == "Contributions" else (), opens=True)
        self._left = self._limit // SEGMENTS
        for jobs in self._pending.values():
            for job in jobs:
                self._hand_over(job)

    def _put(
        self, entry: Callable[[], Entry], bodies: tuple[Buffer, ...] = (), *, opens: bool = False
    ) -> Job:
        """Encodes an entry now, because the machine changes afterwards, and hands it over."""
        try:
            head = encode(entry())
        except TapeError as error:
            self._fail(error)
            head = b""
        size = len(head) + (0 if opens else sum(memoryview(body).nbytes for body in bodies))
        job = Job(lambda: head, bodies, opens, size)
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

    def _write(self) -> None:
        """The writer thread. After a failure it only discards jobs."""
        segments: Segments | None = None
        while (job := self._jobs.get()) is not None:
            try:
                if not self._failed:
                    segments = segments or Segments(self._disk, self._folder, self._limit)
                    if job.opens:
                        segments.open()
                    segments.append(job.head(), job.bodies)
            except OSError as error:
                self._fail(error)
            with self._lock:
                self._waiting -= job.size
        if segments is not None:
            segments.close()


class Segments:
    """Appends to the newest segment, and removes the oldest ones to make room. Use it from one thread at a time. Its
    methods raise `OSError`."""

    def __init__(self, disk: Disk, folder: Path, limit: int) -> None:
        """`limit`: bytes of all segments, including those of earlier processes."""
        self._disk, self._folder, self._limit = disk, folder, limit
        self._sizes: dict[Path, int] = {}
        """Oldest first."""
        for path in disk.files(folder, PATTERN):
            with disk.read(path) as content:
                self._sizes[path] = len(content)
        numbered = (path for path in self._sizes if path.stem.removeprefix("tape-").isdecimal())
        self._path, self._file = max(numbered, default=folder / "tape-00000000.atl"), -1

    def open(self) -> None:
        """Starts another segment."""
        self.close()
        number = int(self._path.stem.removeprefix("tape-")) + 1
        self._path = self._folder / f"tape-{number:08d}.atl"
        self._sizes[self._path] = 0
        self._file = self._disk.open(self._path, new=True)

    def append(self, head: bytes, bodies: Sequence[Buffer]) -> None:
        """Adds a record. Does not sync."""
        size = FRAME.size + len(head) + sum(memoryview(body).nbytes for body in bodies)
        for oldest in list(self._sizes):
            if sum(self._sizes.values()) + size <= self._limit:
                break
            if oldest == self._path:
                raise OSError(f"a record of {size} bytes does not fit into the tape's limit of {self._limit}")
            del self._sizes[oldest]
            self._disk.remove(oldest)
        self._sizes[self._path] += records.append(self._disk, self._file, head, *bodies)

    def close(self) -> None:
        """Closes the newest segment."""
        file, self._file = self._file, -1
        if file >= 0:
            self._disk.close(file)
