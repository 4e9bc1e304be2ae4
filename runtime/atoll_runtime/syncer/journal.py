"""The write-ahead journal: a merge is on the disk before any learner hears of it.

A segment starts with a whole snapshot and is renamed into place when that is synced; merges follow. One that
has grown too long is replaced. A torn last record was never acknowledged to anyone: it is cut off. A record that
is damaged and not the last was: the journal is refused. One process at a time holds the lock beside the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll_runtime.sync.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.errors import JournalError, Terminal
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.state import Version

log = logging.getLogger(__name__)

GROWTH = 4
"""Times its snapshot's length at which a segment is replaced, but not before LEAST_GROWTH."""
LEAST_GROWTH = 64 << 20
"""Bytes below which no segment is replaced."""
LAYOUT = "layout-"
"""How the folder of a layout begins (`plan/syncer.py`)."""


@dataclass(frozen=True)
class Replay:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    machine: dict[str, Any]


class Journal:
    """Open for appending. One writer thread at a time. A write that fails closes it: `resume` cuts its rest off."""

    def __init__(self, directory: Path, uid: str, layout: Layout, lineage: str) -> None:
        self._directory, self._uid, self._layout = directory, uid, layout
        self.lineage = lineage
        self._fragments: list[Version] = []
        self._lock: int | None = None
        self._file: int | None = None
        self._segment = 0
        self._limit = 0
        self._length = 0

    @classmethod
    def resume(cls, directory: Path, uid: str, layout: Layout, codec: str) -> tuple[Journal, Replay] | None:
        """The newest segment of this run, cut off behind its last whole record; None without one.

        What it gives is durable, also where the process that wrote it was killed before it had synced it.

        Raises:
            Terminal: the journal is this run's, of another layout.
            JournalError: the volume fails, another process holds it, or it lost what it had acknowledged.
        """
        journal = cls(directory, uid, layout, "")
        try:
            with journal._writing():
                directory.mkdir(parents=True, exist_ok=True)
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
            JournalError: the volume is full or fails, or another process holds it; the old segment still stands.
        """
        with self._writing():
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._hold()
                if found := segments(self._directory):
                    raise JournalError(f"{found[-1]}: a journal is there: it must be resumed, not begun anew")
                sync(self._directory.parent)
            path = self._directory / f"segment-{self._segment + 1:08d}.wal"
            draft = path.with_suffix(".draft")
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            old, self._file = self._file, file
            if old is not None:
                os.close(old)
            facts = {"uid": self._uid, "fingerprint": self._layout.fingerprint, "lineage": self.lineage}
            length = records.write(file, Head("Run", facts))
            for p, each in enumerate(fragments):
                head = Head("Fragment", fragment=p, version=each.version)
                length += records.write(file, head, each.theta.data, each.momentum.data)
            length += records.write(file, Head("State", dict(machine)))
            os.fsync(file)
            draft.rename(path)
            sync(self._directory)
            tidy(self._directory, path)
        self._segment += 1
        self._fragments = list(fragments)
        self._length, self._limit = length, limit(self._layout)

    def merge(self, p: int, new: Version, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        assert self._fragments, "begin() or resume() first"
        self._fragments[p] = new
        self._append(Head("Merge", dict(machine), p, new.version), new.theta.data, new.momentum.data)

    def remember(self, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        self._append(Head("State", dict(machine)))

    def close(self) -> None:
        """Lets another process have it. What was written is durable already."""
        handles, self._file, self._lock = (self._file, self._lock), None, None
        for handle in handles:
            if handle is not None:
                os.close(handle)

    def _append(self, head: Head, *arrays: memoryview) -> None:
        """A segment that has grown long is replaced."""
        with self._writing():
            if self._file is None:
                raise JournalError(f"{self._directory}: the journal is closed")
            self._length += records.write(self._file, head, *arrays)
            os.fsync(self._file)
        if self._length > self._limit:
            self.begin(self._fragments, head.facts)

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
        """Takes the lock; the kernel gives it back when the process ends, however it ends."""
        path = self._directory.with_name(f"{self._directory.name}.lock")
        self._lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(
                f"{path}: another process holds it: an older syncer of the run still has this volume and must end first"
            ) from error

    def _replay(self, codec: str) -> Replay | None:
        found = segments(self._directory)
        if not found:
            return None
        # The older ones were left by a kill: the newest was whole before it had its name.
        path = found[-1]
        machine: dict[str, Any] | None = None
        arrays: dict[int, tuple[int, bytes]] = {}
        end = 0
        for record in records.read(path):
            head = record.head
            if head.kind == "Run":
                if head.facts["uid"] != self._uid:
                    set_aside(self._directory, head.facts["uid"])
                    return None
                self._check(path, head.facts["fingerprint"])
                self.lineage = head.facts["lineage"]
            if head.kind in ("Fragment", "Merge"):
                arrays[head.fragment] = head.version, record.body
            if head.kind in ("Merge", "State"):
                machine = head.facts
            end = record.end
        if not self.lineage or machine is None or len(arrays) < len(self._layout.fragments):
            raise JournalError(f"{path}: the snapshot at its start is damaged: {records.remedy(path)}")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        torn = os.fstat(self._file).st_size - end
        if torn:
            log.warning("%s: %d bytes behind the last whole record: torn in writing, cut off", path, torn)
            os.ftruncate(self._file, end)
        os.fsync(self._file)
        sync(self._directory)
        tidy(self._directory, path)
        self._segment = int(path.stem.removeprefix("segment-"))
        self._length, self._limit = end, limit(self._layout)
        fragments = tuple(version(*arrays[p], codec) for p in range(len(self._layout.fragments)))
        self._fragments = list(fragments)
        return Replay(self.lineage, fragments, machine)

    def _check(self, path: Path, fingerprint: str) -> None:
        if fingerprint != self._layout.fingerprint:
            raise Terminal(
                "LayoutChanged",
                f"{path}: the journal has fragment layout {fingerprint[:12]}, the run "
                f"{self._layout.fingerprint[:12]}: model and outer.fragments must stay as they were",
            )


def limit(layout: Layout) -> int:
    """Bytes at which a segment is replaced."""
    return max(LEAST_GROWTH, GROWTH * 8 * layout.size)


def version(number: int, body: bytes, codec: str) -> Version:
    """A fragment from a record's body: Θ, then momentum."""
    both = np.frombuffer(body, np.float32)
    half = both.size // 2
    return Version.make(number, both[:half], both[half:], codec)


def forget_others(directory: Path) -> None:
    """Removes what the layouts before this one left on the volume, once a journal of this one stands in `directory`."""
    if not directory.name.startswith(LAYOUT):
        return
    for other in directory.parent.glob(f"{LAYOUT}*"):
        if other != directory:
            log.info("%s: of an earlier number of shards: removed", other)
            shutil.rmtree(other, ignore_errors=True)


def segments(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(directory.glob("segment-*.wal"))


def tidy(directory: Path, newest: Path) -> None:
    """Removes all but the newest segment. Not synced: one that comes back is removed by the next `resume`."""
    for old in directory.glob("segment-*"):
        if old != newest:
            old.unlink()


def set_aside(directory: Path, uid: str) -> None:
    """Moves another run's journal out of the way; one of each run is kept."""
    target = directory.with_name(f"{directory.name}-of-{uid}")
    if target.exists():
        shutil.rmtree(target)
    directory.rename(target)
    sync(directory.parent)
    directory.mkdir()
    log.warning("%s held the journal of run %s: set aside as %s, not used", directory, uid, target.name)


def sync(directory: Path) -> None:
    """Makes what was created, renamed and removed in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
