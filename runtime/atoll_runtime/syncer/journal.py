"""The write-ahead journal: a merge is on the disk before any learner hears of it.

Each fragment has two files, and so has the state, which says which file of each fragment counts. What is new is written
to the file that does not hold the newest: a merge writes its fragment, then the state. So nothing is written twice, and
a write that is torn leaves what was acknowledged before. If no state is whole, or a version that the newest one names,
acknowledged state is lost, so the journal is refused. One process at a time holds the lock beside the folder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from atoll_runtime.interfaces import Disk
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.records import (
    Arrays,
    Clock,
    JournalError,
    State,
    encode,
    fragment_file,
    newest,
    remedy,
    state_file,
)
from atoll_runtime.syncer.state import Version
from atoll_runtime.syncer.tape import tape_share

log = logging.getLogger(__name__)

LAYOUT = "layout-"
"""The prefix of the folder of a run with one number of shards (`plan/run/workloads.py`)."""
ELEMENT = 8
"""Bytes of an element: Θ and momentum, float32."""
STATES, STATES_SHARE = 128 << 20, 16
"""Bytes of a volume that are kept for both states, or one part in STATES_SHARE of the volume if that is less."""


@dataclass(frozen=True)
class Resumed:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    machine: dict[str, Any]


class Journal:
    """Open for writing, by one thread at a time. A failed write closes it."""

    def __init__(
        self, directory: Path, uid: str, layout: Layout, lineage: str, tape: int = 0, disk: Disk = LOCAL
    ) -> None:
        """`tape`: the largest size of an event tape on the same volume, in bytes."""
        self._disk, self._directory, self._layout, self._tape = disk, directory, layout, tape
        places = ((-1, 1),) * len(layout.fragments)
        self._state = State(-1, uid, layout.fingerprint, lineage, places, {})
        """The newest state."""
        self._lock: int | None = None
        self._file: int | None = None
        """The newest state's file, once this process has written one."""

    @property
    def lineage(self) -> str:
        return self._state.lineage

    @classmethod
    def resume(
        cls, directory: Path, uid: str, layout: Layout, codec: str, tape: int = 0, disk: Disk = LOCAL
    ) -> tuple[Journal, Resumed] | None:
        """Opens the journal of this run. Returns None without one.

        The result is durable, even if the process that wrote it was killed before it synced.

        Raises:
            Terminal: the journal of this run has another layout, or the volume is too small for it.
            JournalError: the volume fails, another process holds it, or it lost what it had acknowledged.
        """
        journal = cls(directory, uid, layout, "", tape, disk)
        with journal._writing():
            disk.make(directory)
            journal._hold()
            found = newest(disk, directory)
            if found is not None and found.uid == uid:
                return journal, journal._resume(found, codec)
            if found is not None:
                journal._set_aside(found.uid)
        journal.close()
        return None

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
            if newest(disk, self._directory) is not None:
                raise JournalError(
                    f"{self._directory}: a journal is there: it must be resumed, not begun anew"
                )
            for above in self._directory.parents[:2]:  # `make` may have created both
                disk.sync_folder(above)
            check_room(self._layout, disk.volume(self._directory), self._tape)
            self._forget_others()
            for p in range(len(fragments)):
                disk.close(disk.open(fragment_file(self._directory, p, 1), new=True))
            places = tuple(self._put(p, each) for p, each in enumerate(fragments))
            disk.sync_folder(self._directory)  # before there is a state that names these files
            self._write(places, machine)

    def merge(self, p: int, new: Version, machine: Mapping[str, Any]) -> None:
        """Writes a merge. It is durable when this returns. Raises `JournalError`."""
        with self._writing():
            self._check_open()
            places = list(self._state.newest)
            places[p] = self._put(p, new)
            self._write(tuple(places), machine)

    def remember(self, machine: Mapping[str, Any]) -> None:
        """Writes the machine's record. It is durable when this returns. Raises `JournalError`."""
        with self._writing():
            self._check_open()
            self._write(self._state.newest, machine)

    def advance(self, clock: int) -> None:
        """Writes the run's clock, which shard 0 keeps. It is durable when this returns. Raises `JournalError`."""
        with self._writing():
            self._check_open()
            assert self._file is not None, "a process writes its state before the clock advances"
            self._append(self._file, encode(Clock(clock)))

    def close(self) -> None:
        """Closes the journal and releases the lock. What was written is durable already."""
        handles, self._file, self._lock = (self._file, self._lock), None, None
        for handle in handles:
            if handle is not None:
                self._disk.close(handle)

    def _put(self, p: int, new: Version) -> tuple[int, int]:
        """Writes a version to the file that does not hold the newest one. It counts once the state names it."""
        place = 1 - self._state.newest[p][1]
        file = self._disk.open(fragment_file(self._directory, p, place), new=True)
        try:
            self._append(file, encode(Arrays(p, new.version)), new.theta.data, new.momentum.data)
        finally:
            self._disk.close(file)
        return new.version, place

    def _write(self, places: tuple[tuple[int, int], ...], machine: Mapping[str, Any]) -> None:
        """Writes a state to the file that does not hold the newest one."""
        state = replace(self._state, number=self._state.number + 1, newest=places, machine=dict(machine))
        encoded = encode(state)  # may fail, so before the file is emptied
        before, self._file = self._file, self._disk.open(state_file(self._directory, state.number), new=True)
        if before is not None:
            self._disk.close(before)
        self._append(self._file, encoded)
        if state.number < 2:  # the file is a new one
            self._disk.sync_folder(self._directory)
        self._state = state

    def _append(self, file: int, head: bytes, *arrays: memoryview) -> None:
        records.append(self._disk, file, head, *arrays)
        self._disk.sync(file)

    def _check_open(self) -> None:
        if self._lock is None:
            raise JournalError(f"{self._directory}: the journal is closed")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Closes the journal after a failure. A file may then end in half a record, or in one that is not synced."""
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

    def _resume(self, found: State, codec: str) -> Resumed:
        """Continues from a state, which its writer may not have synced."""
        disk, path = self._disk, state_file(self._directory, found.number)
        if found.fingerprint != self._layout.fingerprint:
            raise Terminal(
                "LayoutChanged",
                f"{path}: the journal has fragment layout {found.fingerprint[:12]}, the run "
                f"{self._layout.fingerprint[:12]}: model and outer.fragments must stay as they were",
            )
        check_room(self._layout, disk.volume(self._directory), self._tape)
        file = disk.open(path)
        disk.sync(file)
        disk.close(file)
        disk.sync_folder(self._directory)
        self._state = found
        fragments = (self._version(p, *each, codec) for p, each in enumerate(found.newest))
        return Resumed(found.lineage, tuple(fragments), found.machine)

    def _version(self, p: int, version: int, place: int, codec: str) -> Version:
        path = fragment_file(self._directory, p, place)
        head, body = next(records.read(self._disk, path), (None, b""))
        if head != Arrays(p, version):
            raise JournalError(
                f"{path}: version {version} is damaged, of which the state tells: {remedy(path)}"
            )
        both = np.frombuffer(body, np.float32)
        half = both.size // 2
        return Version.make(version, both[:half], both[half:], codec)

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


def check_room(layout: Layout, volume: int, tape: int) -> None:
    """Raises `Terminal` if a volume of so many bytes has no room for two versions of every fragment."""
    needed = 2 * ELEMENT * layout.size
    kept = tape_share(tape, volume) + min(STATES, volume // STATES_SHARE)
    if needed > volume - kept:
        raise Terminal(
            "VolumeTooSmall",
            f"the journal of {layout.size} parameters needs {needed} bytes, for two versions of each, and its volume "
            f"of {volume} has {volume - kept} for it, {kept} being the event tape's and the states': "
            "give a new run more spec.syncer.storage, or more spec.syncer.shards",
        )
