"""The write-ahead journal: a merge is on the disk before any learner hears of it.

Each fragment has two files. A merge writes the file that does not hold the newest version. Then it appends a record to
the log, with the machine's state and the number of the file that counts. So no version is written twice and the log
stays short; a log that has grown long is replaced. A torn last record was never acknowledged, so it is cut off. If an
earlier record is damaged, or a version that the log names, acknowledged state is lost, so the journal is refused. One
process at a time holds the lock beside the folder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll_runtime.interfaces import Disk, Volume
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.records import Head, JournalError, Replay, fragment, known, logs
from atoll_runtime.syncer.state import Version

log = logging.getLogger(__name__)

LAYOUT = "layout-"
"""The prefix of the folder of a run with one number of shards (`plan/run/workloads.py`)."""
ELEMENT = 8
"""Bytes of an element: Θ and momentum, float32."""
LOG, LOG_SHARE = 64 << 20, 32
"""A log is replaced at LOG bytes, or at one part in LOG_SHARE of the volume if that is less."""
LEAST_LOG = 4
"""A log is not replaced before it has this many times the length of its first records."""


class Journal:
    """Open for appending, by one writer thread at a time. A failed write closes it; `resume` cuts off its remains."""

    def __init__(
        self, directory: Path, uid: str, layout: Layout, lineage: str, tape: int = 0, disk: Disk = LOCAL
    ) -> None:
        """`tape`: the largest size of an event tape on the same volume, in bytes."""
        self._disk = disk
        self._directory, self._uid, self._layout, self._tape = directory, uid, layout, tape
        self.lineage = lineage
        self._newest: list[tuple[int, int]] = [(-1, 1)] * len(layout.fragments)
        """The newest version of each fragment, and its file."""
        self._machine: dict[str, Any] = {}
        self._lock: int | None = None
        self._file: int | None = None
        self._number = self._length = self._limit = 0
        """The log's number, its length in bytes, and the length above which it is replaced."""

    @classmethod
    def resume(
        cls, directory: Path, uid: str, layout: Layout, codec: str, tape: int = 0, disk: Disk = LOCAL
    ) -> tuple[Journal, Replay] | None:
        """Opens the journal of this run, with its log cut off after the last whole record. Returns None without one.

        The result is durable, even if the process that wrote it was killed before it synced.

        Raises:
            Terminal: the journal of this run has another layout, or the volume is too small for it.
            JournalError: the volume fails, another process holds it, or it lost what it had acknowledged.
        """
        journal = cls(directory, uid, layout, "", tape, disk)
        with journal._writing():
            disk.make(directory)
            journal._hold()
            replay = journal._replay(codec)
        if replay is None:
            journal.close()
            return None
        return journal, replay

    def begin(self, fragments: Sequence[Version], machine: Mapping[str, Any]) -> None:
        """Starts a journal where there is none.

        Raises:
            Terminal: the volume is too small for this layout.
            JournalError: the volume is full or fails, another process holds it, or there is a journal already.
        """
        disk = self._disk
        with self._writing():
            disk.make(self._directory)
            self._hold()
            if found := logs(disk, self._directory):
                raise JournalError(f"{found[-1]}: a journal is there: it must be resumed, not begun anew")
            for above in self._directory.parents[:2]:  # `make` may have created both
                disk.sync_folder(above)
            room(self._layout, disk.volume(self._directory), self._tape)
            self._forget_others()
            for p, each in enumerate(fragments):
                disk.close(disk.open(fragment(self._directory, p, 1), new=True))
                self._put(p, each)
            disk.sync_folder(self._directory)  # before there is a log that names these files
            self._machine = dict(machine)
            self._replace()

    def merge(self, p: int, new: Version, machine: Mapping[str, Any]) -> None:
        """Writes a merge. It is durable when this returns. Raises `JournalError`."""
        with self._writing():
            self._check_open()
            self._put(p, new)
            self._append(Head("Merge", dict(machine), p, *self._newest[p]))

    def remember(self, machine: Mapping[str, Any]) -> None:
        """Writes the machine's record. It is durable when this returns. Raises `JournalError`."""
        with self._writing():
            self._append(Head("State", dict(machine)))

    def advance(self, clock: int) -> None:
        """Writes the run's clock, which shard 0 keeps. It is durable when this returns. Raises `JournalError`."""
        with self._writing():
            self._append(Head("Clock", {"machine": {"clock": clock}}))

    def close(self) -> None:
        """Closes the log and releases the lock. What was written is durable already."""
        handles, self._file, self._lock = (self._file, self._lock), None, None
        for handle in handles:
            if handle is not None:
                self._disk.close(handle)

    def _put(self, p: int, new: Version) -> None:
        """Writes a version to the file that does not hold the newest one. The version counts once the log names it."""
        place = 1 - self._newest[p][1]
        file = self._disk.open(fragment(self._directory, p, place), new=True)
        try:
            head = Head("Fragment", fragment=p, version=new.version)
            records.write(self._disk, file, head, new.theta.data, new.momentum.data)
            self._disk.sync(file)
        finally:
            self._disk.close(file)
        self._newest[p] = new.version, place

    def _append(self, head: Head) -> None:
        file = self._check_open()
        self._machine = known(self._machine, head)
        self._length += records.write(self._disk, file, head)
        self._disk.sync(file)
        if self._length > self._limit:
            self._replace()

    def _replace(self) -> None:
        """Writes a new log with the present state, and removes the old one."""
        disk, path = self._disk, self._directory / f"log-{self._number + 1:08d}.wal"
        draft = path.with_suffix(".draft")
        facts = {"uid": self._uid, "fingerprint": self._layout.fingerprint, "lineage": self.lineage}
        file = disk.open(draft, new=True)
        length = records.write(disk, file, Head("Run", {**facts, "newest": self._newest}))
        length += records.write(disk, file, Head("State", self._machine))
        disk.sync(file)
        disk.rename(draft, path)
        disk.sync_folder(self._directory)
        if self._file is not None:
            disk.close(self._file)
        self._use(path, file, length, length)

    def _use(self, path: Path, file: int, length: int, first: int) -> None:
        """Continues with this log. `first`: bytes of its first records, or 0 when not known."""
        self._file, self._number, self._length = file, int(path.stem.removeprefix("log-")), length
        most = room(self._layout, self._disk.volume(self._directory), self._tape)
        self._limit = max(most, LEAST_LOG * first)
        for old in self._disk.files(self._directory, "log-*"):
            if old != path:  # removed without a sync, so it may come back; the next `resume` removes it again
                self._disk.remove(old)

    def _check_open(self) -> int:
        if self._file is None:
            raise JournalError(f"{self._directory}: the journal is closed")
        return self._file

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Closes the journal after a failure. The log may then end in half a record, or in one that is not synced, and
        nothing may follow it."""
        try:
            yield
        except OSError as error:
            self.close()
            raise JournalError(f"{error.filename or self._directory}: {error.strerror or error}") from error
        except BaseException:
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
        found = logs(disk, self._directory)
        if not found:
            return None
        path = found[-1]  # older logs were left by a kill; the newest was whole before it got its name
        first = next(records.read(disk, path), None)
        if first is not None and (uid := first.head.facts.get("uid", self._uid)) != self._uid:
            self._set_aside(uid)
            return None
        replay, end = records.recall(disk, path, self._layout, codec)
        file = self._file = disk.open(path)
        torn = disk.size(file) - end
        if torn:
            log.warning("%s: %d bytes behind the last whole record: torn in writing, cut off", path, torn)
            disk.truncate(file, end)
        disk.sync(file)
        disk.sync_folder(self._directory)
        self.lineage, self._machine, self._newest = replay.lineage, replay.machine, list(replay.newest)
        self._use(path, file, end, 0)
        return replay

    def _forget_others(self) -> None:
        """Removes what earlier numbers of shards left: a volume has room for one journal."""
        mine = self._directory.parent
        for other in self._disk.files(mine.parent, f"{LAYOUT}*") if mine.name.startswith(LAYOUT) else []:
            if other != mine:
                log.info("%s: of an earlier number of shards: removed", other)
                self._disk.remove(other)

    def _set_aside(self, uid: str) -> None:
        """Moves another run's journal aside. One journal of each run is kept."""
        disk, directory = self._disk, self._directory
        target = directory.with_name(f"{directory.name}-of-{uid}")
        disk.remove(target)
        disk.rename(directory, target)
        disk.sync_folder(directory.parent)
        disk.make(directory)
        log.warning("%s held the journal of run %s: set aside as %s, not used", directory, uid, target.name)


def room(layout: Layout, volume: Volume, tape: int) -> int:
    """Returns the bytes that a log may have. There may be two logs besides the fragments' files.

    Raises:
        Terminal: the volume has no room for two versions of every fragment.
    """
    most = min(LOG, volume.size // LOG_SHARE)
    needed, kept = 2 * ELEMENT * layout.size, volume.share(tape) + 2 * most
    if needed > volume.size - kept:
        raise Terminal(
            "VolumeTooSmall",
            f"the journal of {layout.size} parameters needs {needed} bytes, for two versions of each, and its volume "
            f"of {volume.size} has {volume.size - kept} for it, {kept} being the event tape's and the log's: "
            "give a new run more spec.syncer.storage, or more spec.syncer.shards",
        )
    return most
