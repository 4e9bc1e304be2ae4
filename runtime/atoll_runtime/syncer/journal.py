"""The write-ahead journal: a merge is on the disk before any learner hears of it.

A segment starts with a whole snapshot and is renamed into place when that is synced; merges follow. Beside one that
has grown long the next is written, `STEP` bytes at a time, so that no merge waits for a snapshot. A torn last record
was never acknowledged to anyone: it is cut off. A record that is damaged and not the last was: the journal is refused.
One process at a time holds the lock beside the folder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll_runtime.interfaces import Disk
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer import history, records
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.draft import Draft
from atoll_runtime.syncer.errors import JournalError
from atoll_runtime.syncer.folders import segments, set_aside, tidy
from atoll_runtime.syncer.history import AnotherRun, Replay, known
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.room import ELEMENT, limit
from atoll_runtime.syncer.state import Version

log = logging.getLogger(__name__)

ROLL = 3 / 4
"""Of a segment's growth, after which the next one is begun."""
STEP = 1 << 20
"""Bytes of the next segment that are written and synced at a time: a merge waits for as many."""
CUT = 16 << 20
"""Bytes by which the old one is shortened at a time, before it is removed: file systems take a while for gigabytes."""


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
        self._draft: Draft | None = None
        self._old: int | None = None
        """The segment before this one, until it is removed."""
        self._segment = 0
        self._limit = 0
        """Bytes beyond which a segment must be replaced before it may grow."""
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

    @property
    def rolling(self) -> bool:
        """The next segment is being written or the last one removed: `roll` goes on with it."""
        return self._draft is not None or self._old is not None

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
            if self._draft is not None:
                disk.close(self._draft.file)
                self._draft = None
            self._fragments, self._machine = list(fragments), dict(machine)
            self._replace_at_once()

    def roll(self) -> None:
        """Goes on with the next segment until it is in the place of this one, and then with the removal of that.

        Raises:
            JournalError: the volume fails.
        """
        disk = self._disk
        with self._writing():
            if self._old is not None:
                left = disk.size(self._old) - CUT
                if left > 0:
                    disk.truncate(self._old, left)
                else:
                    self._clear()
            elif self._draft is not None:
                if self._draft.write(STEP):
                    self._replace()
                else:
                    disk.sync(self._draft.file)

    def merge(self, p: int, new: Version, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        assert self._fragments, "begin() or resume() first"
        self._fragments[p] = new
        if self._draft is not None:
            self._draft.change(p)
        self._append(Head("Merge", dict(machine), p, new.version), new.theta.data, new.momentum.data)

    def remember(self, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        self._append(Head("State", dict(machine)))

    def advance(self, clock: int) -> None:
        """The run's clock, which shard 0 keeps: durable when it returns. Raises `JournalError`."""
        self._append(Head("Clock", {"machine": {"clock": clock}}))

    def close(self) -> None:
        """Lets another process have it. What was written is durable already."""
        handles = self._file, self._lock, self._old, self._draft.file if self._draft else None
        self._file = self._lock = self._old = self._draft = None
        for handle in handles:
            if handle is not None:
                self._disk.close(handle)

    def _append(self, head: Head, *arrays: memoryview) -> None:
        """Beside a segment that has grown long the next is begun. One that may not grow is replaced at once; where it
        was too long already, the snapshot has the news."""
        with self._writing():
            if self._file is None:
                raise JournalError(f"{self._directory}: the journal is closed")
            self._machine = known(self._machine, head)
            if self._used() > self._limit and self._old is not None:
                self._clear()
            if self._used() <= self._limit:
                self._length += records.write(self._disk, self._file, head, *arrays)
                self._disk.sync(self._file)
            if self._used() > self._limit:
                self._replace_at_once()
            elif not self.rolling and self._length > self._soft():
                self._draft = self._begun()

    def _used(self) -> int:
        """Bytes of this segment and of what the next one has beside a snapshot."""
        return self._length + (self._draft.again if self._draft else 0)

    def _soft(self) -> float:
        """Bytes beyond which the next segment is begun."""
        snapshot = ELEMENT * self._layout.size
        return snapshot + ROLL * (self._limit - snapshot)

    def _begun(self) -> Draft:
        facts = {"uid": self._uid, "fingerprint": self._layout.fingerprint, "lineage": self.lineage}
        return Draft(self._disk, self._path(self._segment + 1), facts, self._fragments)

    def _replace_at_once(self) -> None:
        limit(self._layout, self._disk.volume(self._directory), self._tape, 0)
        self._replace()
        self._clear()

    def _replace(self) -> None:
        """Writes what the next segment lacks, and puts it in the place of this one."""
        draft = self._draft = self._draft or self._begun()
        draft.write()
        draft.end(self._machine)
        if self._old is not None:
            self._disk.close(self._old)
        self._old, self._file, self._draft = self._file, draft.file, None
        self._segment, self._length = self._segment + 1, draft.length
        self._set_limit()

    def _clear(self) -> None:
        """Removes all segments but this one."""
        if self._old is not None:
            self._disk.close(self._old)
            self._old = None
        tidy(self._disk, self._directory, self._path(self._segment))
        self._set_limit()

    def _set_limit(self) -> None:
        volume = self._disk.volume(self._directory)
        self._limit = limit(self._layout, volume, self._tape, self._length)

    def _path(self, number: int) -> Path:
        return self._directory / f"segment-{number:08d}.wal"

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
        path = found[-1]  # the older ones were left by a kill: the newest was whole before it had its name
        try:
            replay, end = history.read(disk, path, self._uid, self._layout, codec)
        except AnotherRun as other:
            set_aside(disk, self._directory, other.uid)
            return None
        self._file = disk.open(path)
        torn = disk.size(self._file) - end
        if torn:
            log.warning("%s: %d bytes behind the last whole record: torn in writing, cut off", path, torn)
            disk.truncate(self._file, end)
        disk.sync(self._file)
        disk.sync_folder(self._directory)
        self.lineage, self._machine, self._fragments = replay.lineage, replay.machine, list(replay.fragments)
        self._segment, self._length = int(path.stem.removeprefix("segment-")), end
        self._clear()
        return replay
