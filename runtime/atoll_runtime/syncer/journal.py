"""The write-ahead journal: a merge is on the disk before any learner hears of it.

A segment starts with a whole snapshot and is renamed into place when that is synced; merges follow. One that
has grown too long is replaced. A torn last record was never acknowledged to anyone: it is cut off.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from atoll_runtime.sync.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.errors import JournalError, Terminal
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.state import Version

log = logging.getLogger(__name__)

GROWTH = 4
"""A segment is replaced when it is so many times as long as its snapshot,"""
LEAST_GROWTH = 64 << 20
"""and longer than this, in bytes."""


@dataclass(frozen=True)
class Replay:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    machine: dict[str, Any]


class Journal:
    """Open for appending. One writer thread at a time."""

    def __init__(self, directory: Path, uid: str, layout: Layout, lineage: str) -> None:
        self._directory, self._uid, self._layout = directory, uid, layout
        self.lineage = lineage
        self._fragments: list[Version] = []
        self._file: BinaryIO | None = None
        self._segment = 0
        self._limit = 0
        self._length = 0

    @classmethod
    def resume(cls, directory: Path, uid: str, layout: Layout, codec: str) -> tuple[Journal, Replay] | None:
        """The newest usable segment of this run, cut off behind its last whole record; None without one.

        Raises:
            Terminal: the journal is this run's, of another layout.
            JournalError: the volume fails.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in sorted(directory.glob("segment-*.wal"), reverse=True):
                found = cls._open(path, uid, layout, codec) if path.exists() else None
                if found is not None:
                    return found
        except OSError as error:
            raise JournalError(f"{directory}: {error.strerror or error}") from error
        return None

    @classmethod
    def _open(cls, path: Path, uid: str, layout: Layout, codec: str) -> tuple[Journal, Replay] | None:
        lineage, machine, end = "", None, 0
        arrays: dict[int, tuple[int, bytes]] = {}
        for record in records.read(path):
            head = record.head
            if head.kind == "Run":
                if head.facts["uid"] != uid:
                    set_aside(path.parent, head.facts["uid"])
                    return None
                if head.facts["fingerprint"] != layout.fingerprint:
                    raise Terminal(
                        "LayoutChanged",
                        f"{path}: the journal has fragment layout {head.facts['fingerprint'][:12]}, the run "
                        f"{layout.fingerprint[:12]}: model and outer.fragments must stay as they were",
                    )
                lineage = head.facts["lineage"]
            if head.kind in ("Fragment", "Merge"):
                arrays[head.fragment] = head.version, record.body
            if head.kind in ("Merge", "State"):
                machine = head.facts
            end = record.end
        if not lineage or machine is None or len(arrays) < len(layout.fragments):
            log.error("%s: the snapshot at its start is damaged; trying an older segment", path)
            return None
        torn = path.stat().st_size - end
        if torn:
            log.warning(
                "%s: %d bytes behind the last whole record were never acknowledged: cut off", path, torn
            )
            os.truncate(path, end)
        journal = cls(path.parent, uid, layout, lineage)
        journal._file = path.open("ab")
        journal._segment = int(path.stem.removeprefix("segment-"))
        journal._length, journal._limit = end, limit(layout)
        fragments = tuple(version(*arrays[p], codec) for p in range(len(layout.fragments)))
        journal._fragments = list(fragments)
        return journal, Replay(lineage, fragments, machine)

    def begin(self, fragments: Sequence[Version], machine: Mapping[str, Any]) -> None:
        """Starts a new segment with a whole snapshot, and removes the older ones.

        Raises:
            JournalError: the volume is full or fails; the old segment still stands.
        """
        path = self._directory / f"segment-{self._segment + 1:08d}.wal"
        draft = path.with_suffix(".draft")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                facts = {"uid": self._uid, "fingerprint": self._layout.fingerprint, "lineage": self.lineage}
                length = records.write(file, Head("Run", facts))
                for p, each in enumerate(fragments):
                    head = Head("Fragment", fragment=p, version=each.version)
                    length += records.write(file, head, each.theta.data, each.momentum.data)
                length += records.write(file, Head("State", dict(machine)))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
            sync_directory(self._directory)
            self.close()
            self._file = path.open("ab")
            for old in self._directory.glob("segment-*"):
                if old != path:
                    old.unlink()
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror or error}") from error
        self._segment += 1
        self._fragments = list(fragments)
        self._length, self._limit = length, limit(self._layout)

    def merge(self, p: int, new: Version, machine: Mapping[str, Any]) -> None:
        """Durable when it returns; a segment that has grown long is replaced. Raises `JournalError`."""
        head = Head("Merge", dict(machine), p, new.version)
        self._append(head, new.theta.data, new.momentum.data)
        self._fragments[p] = new
        if self._length > self._limit:
            self.begin(self._fragments, machine)

    def remember(self, machine: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `JournalError`."""
        self._append(Head("State", dict(machine)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, head: Head, *arrays: memoryview) -> None:
        assert self._file is not None, "begin() or resume() first"
        try:
            self._length += records.write(self._file, head, *arrays)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(f"{self._file.name}: {error.strerror or error}") from error


def limit(layout: Layout) -> int:
    """Bytes at which a segment is replaced."""
    return max(LEAST_GROWTH, GROWTH * 8 * layout.size)


def version(number: int, body: bytes, codec: str) -> Version:
    """A fragment from a record's body: Θ, then momentum."""
    both = np.frombuffer(body, np.float32)
    half = both.size // 2
    return Version.make(number, both[:half], both[half:], codec)


def set_aside(directory: Path, uid: str) -> None:
    """Moves another run's journal out of the way; one of each run is kept."""
    target = directory.with_name(f"{directory.name}-of-{uid}")
    if target.exists():
        shutil.rmtree(target)
    directory.rename(target)
    directory.mkdir()
    log.warning("%s held the journal of run %s: set aside as %s, not used", directory, uid, target.name)


def sync_directory(directory: Path) -> None:
    """Makes a rename durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
