"""The write-ahead journal: a merge is on the disk before any learner hears of it.

A segment starts with a whole snapshot and is renamed into place when that is synced; merges follow. One that
has grown too long is replaced, while the next still fits beside it. A torn last record was never acknowledged to
anyone: it is cut off. A record that is damaged and not the last was: the journal is refused. One process at a time
holds the lock beside the folder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll_runtime.interfaces import Disk, Volume
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.errors import JournalError, Terminal
from atoll_runtime.syncer.folders import segments, set_aside, tidy
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.state import Version

log = logging.getLogger(__name__)

GROWTH = 4
"""Times its snapshot's length at which a segment is replaced, but not before LEAST_GROWTH."""
LEAST_GROWTH = 64 << 20
"""Bytes below which no segment is replaced on a volume that is not small."""
ELEMENT = 8
"""Bytes of an element: Θ and momentum."""
SLACK, SLACK_SHARE = 16 << 20, 16
"""Bytes, a sixteenth of the volume at most, for the heads of records and what else lies there."""


@dataclass(frozen=True)
class Replay:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    machine: dict[str, Any]


class Journal:
    """Open for appending. One writer thread at a time. A write that fails closes it: `resume` cuts its rest off."""

    def __init__(
        self, directory: Path, uid: str, layout: Layout, lineage: str, tape: int = 0, disk: Disk = LOCAL
    ) -> None:
        """`tape`: bytes that an event tape may grow to on the same volume."""
        self._disk = disk
        self._directory, self._uid, self._layout, self._tape = directory, uid, layout, tape
        self.lineage = lineage
        self._fragments: list[Version] = []
        self._machine: dict[str, Any] = {}
        self._lock: int | None = None
        self._file: int | None = None
        self._segment = 0
        self._limit = 0
        self._length = 0

    @classmethod
    def resume(
        cls, directory: Path, uid: str, layout: Layout, codec: str, tape: int = 0, disk: Disk = LOCAL
    ) -> tuple[Journal, Replay] | None:
        """The newest segment of this run, cut off behind its last whole record; None without one.

        What it gives is durable, also where the process that wrote it was killed before it had synced it.

        Raises:
            Terminal: the journal is this run's, of another layout; or the volume is too small for it.
            JournalError: the volume fails, another process holds it, or it lost what it had acknowledged.
        """
        journal = cls(directory, uid, layout, "", tape, disk)
        try:
            with journal._writing():
                disk.make(directory)
                journal._hold()
                replay = journal._replay(codec)
        except BaseException:
            journal.close()
            raise
        if replay is None:
            journal.close()
            return None
        return journal, replay

    def begin(self, fragments: Sequence[Version], machine: Mapping[str, Any]) -> None:
        """Starts a new segment with a whole snapshot, and removes the older ones.

        Raises:
            Terminal: the volume is too small for this layout.
            JournalError: the volume is full or fails, or another process holds it; the old segment still stands.
        """
        disk = self._disk
        with self._writing():
            if self._file is None:
                disk.make(self._directory)
                self._hold()
                if found := segments(disk, self._directory):
                    raise JournalError(f"{found[-1]}: a journal is there: it must be resumed, not begun anew")
                disk.sync_folder(self._directory.parent)
            limit(self._layout, disk.volume(self._directory), self._tape, 0)
            path = self._directory / f"segment-{self._segment + 1:08d}.wal"
            draft = path.with_suffix(".draft")
            file = disk.open(draft, new=True)
            old, self._file = self._file, file
            if old is not None:
                disk.close(old)
            facts = {"uid": self._uid, "fingerprint": self._layout.fingerprint, "lineage": self.lineage}
            length = records.write(disk, file, Head("Run", facts))
            for p, each in enumerate(fragments):
                head = Head("Fragment", fragment=p, version=each.version)
                length += records.write(disk, file, head, each.theta.data, each.momentum.data)
            length += records.write(disk, file, Head("State", dict(machine)))
            disk.sync(file)
            disk.rename(draft, path)
            disk.sync_folder(self._directory)
            tidy(disk, self._directory, path)
            self._limit = limit(self._layout, disk.volume(self._directory), self._tape, length)
        self._segment += 1
        self._fragments, self._machine = list(fragments), dict(machine)
        self._length = length

    def merge(self, p: int, new: Version, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        assert self._fragments, "begin() or resume() first"
        self._fragments[p] = new
        self._append(Head("Merge", dict(machine), p, new.version), new.theta.data, new.momentum.data)

    def remember(self, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        self._append(Head("State", dict(machine)))

    def advance(self, clock: int) -> None:
        """The run's clock, which shard 0 keeps: durable when it returns. Raises `JournalError`."""
        self._append(Head("Clock", {"machine": {"clock": clock}}))

    def close(self) -> None:
        """Lets another process have it. What was written is durable already."""
        handles, self._file, self._lock = (self._file, self._lock), None, None
        for handle in handles:
            if handle is not None:
                self._disk.close(handle)

    def _append(self, head: Head, *arrays: memoryview) -> None:
        """A segment that has grown long is replaced; where it was too long already, the snapshot has the news."""
        with self._writing():
            if self._file is None:
                raise JournalError(f"{self._directory}: the journal is closed")
            self._machine = known(self._machine, head)
            if self._length <= self._limit:
                self._length += records.write(self._disk, self._file, head, *arrays)
                self._disk.sync(self._file)
        if self._length > self._limit:
            self.begin(self._fragments, self._machine)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Half a record may be there after a failure, or one that is not synced: nothing may follow it."""
        try:
            yield
        except OSError as error:
            self.close()
            raise JournalError(f"{error.filename or self._directory}: {error.strerror or error}") from error
        except JournalError:
            self.close()
            raise

    def _hold(self) -> None:
        path = self._directory.with_name(f"{self._directory.name}.lock")
        try:
            self._lock = self._disk.lock(path)
        except BlockingIOError as error:
            raise JournalError(
                f"{path}: another process holds it: an older syncer of the run still has this volume and must end first"
            ) from error

    def _replay(self, codec: str) -> Replay | None:
        disk = self._disk
        found = segments(disk, self._directory)
        if not found:
            return None
        # The older ones were left by a kill: the newest was whole before it had its name.
        path = found[-1]
        machine: dict[str, Any] = {}
        arrays: dict[int, tuple[int, bytes]] = {}
        end = 0
        for record in records.read(disk, path):
            head = record.head
            if head.kind == "Run":
                if head.facts["uid"] != self._uid:
                    set_aside(disk, self._directory, head.facts["uid"])
                    return None
                self._check(path, head.facts["fingerprint"])
                self.lineage = head.facts["lineage"]
            if head.kind in ("Fragment", "Merge"):
                arrays[head.fragment] = head.version, record.body
            machine = known(machine, head)
            end = record.end
        if not self.lineage or not machine or len(arrays) < len(self._layout.fragments):
            raise JournalError(f"{path}: the snapshot at its start is damaged: {records.remedy(path)}")
        self._file = disk.open(path)
        torn = disk.size(self._file) - end
        if torn:
            log.warning("%s: %d bytes behind the last whole record: torn in writing, cut off", path, torn)
            disk.truncate(self._file, end)
        disk.sync(self._file)
        disk.sync_folder(self._directory)
        tidy(disk, self._directory, path)
        self._segment = int(path.stem.removeprefix("segment-"))
        self._length, self._limit = end, limit(self._layout, disk.volume(self._directory), self._tape, end)
        fragments = tuple(version(*arrays[p], codec) for p in range(len(self._layout.fragments)))
        self._fragments, self._machine = list(fragments), machine
        return Replay(self.lineage, fragments, machine)

    def _check(self, path: Path, fingerprint: str) -> None:
        if fingerprint != self._layout.fingerprint:
            raise Terminal(
                "LayoutChanged",
                f"{path}: the journal has fragment layout {fingerprint[:12]}, the run "
                f"{self._layout.fingerprint[:12]}: model and outer.fragments must stay as they were",
            )


def known(machine: dict[str, Any], head: Head) -> dict[str, Any]:
    """What is known of the machine after another record."""
    if head.kind == "Clock":
        return {**machine, "machine": {**machine["machine"], **head.facts["machine"]}}
    return head.facts if head.kind in ("Merge", "State") else machine


def limit(layout: Layout, volume: Volume, tape: int, length: int) -> int:
    """Bytes beyond which a segment, now of `length`, is replaced: the next one's snapshot must fit beside it.

    Raises:
        Terminal: two snapshots and a record do not fit.
    """
    snapshot, record = ELEMENT * layout.size, ELEMENT * max(each.size for each in layout.fragments)
    kept = volume.share(tape) + min(SLACK, volume.size // SLACK_SHARE)
    needed, available = 2 * snapshot + record, volume.size - kept
    if needed > available:
        raise Terminal(
            "VolumeTooSmall",
            f"the journal of {layout.size} parameters needs {needed} bytes, for two snapshots and a record, and its "
            f"volume of {volume.size} has {available} for it, {kept} being the event tape's and others': "
            "give a new run more spec.syncer.storage, or more spec.syncer.shards",
        )
    # What else lies on the volume, such as the journal of an earlier run, is not free.
    room = min(available, volume.free + length - kept) - snapshot - record
    return min(max(LEAST_GROWTH, GROWTH * snapshot), room)


def version(number: int, body: bytes, codec: str) -> Version:
    """A fragment from a record's body: Θ, then momentum."""
    both = np.frombuffer(body, np.float32)
    half = both.size // 2
    return Version.make(number, both[:half], both[half:], codec)
