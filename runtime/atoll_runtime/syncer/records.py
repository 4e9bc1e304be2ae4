"""The journal's records on disk, and the state that they hold. The event tape appends its records in the same way."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from atoll_runtime.interfaces import Disk
from atoll_runtime.process import Terminal
from atoll_runtime.protocol import frames
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.frames import Buffer, Damaged, Frame
from atoll_runtime.syncer.state import Version


class JournalError(Exception):
    """The journal cannot be read or written; the message names the file."""


class Head(msgspec.Struct, frozen=True):
    """What a record says. A `Fragment`, in a file of its own, carries Θ and momentum as its body."""

    kind: Literal["Run", "Fragment", "Merge", "State", "Clock"]
    facts: dict[str, Any] = {}
    """`Run`: uid, fingerprint, lineage, newest (version and file of each fragment). `State` and `Merge`: the machine's
    record. `Clock`: the changed fields of that record."""
    fragment: int = -1
    version: int = -1
    place: int = -1
    """Which of the fragment's two files holds the version."""

    def __str__(self) -> str:
        named = f"{self.kind} of fragment {self.fragment}, version {self.version}"
        return named if self.version >= 0 else self.kind


@dataclass(frozen=True)
class Record:
    """A record as read, and the offset of its end."""

    head: Head
    body: bytes
    end: int


def logs(disk: Disk, directory: Path) -> list[Path]:
    """Oldest first."""
    return disk.files(directory, "log-*.wal")


def fragment(directory: Path, p: int, place: int) -> Path:
    """One of the two files of fragment `p`."""
    return directory / f"fragment-{p:05d}-{place}.wal"


def write(disk: Disk, file: int, head: Head, *arrays: memoryview) -> int:
    """Appends a record to an open file; returns its length in bytes. Does not sync.

    Raises:
        OSError: the write failed; the file may hold a part of the record.
        JournalError: a number does not fit into a record; nothing was written.
    """
    try:
        encoded = msgspec.msgpack.encode(head)
    except OverflowError as error:
        raise JournalError(f"a record of a {head.kind} cannot be written: {error}") from error
    return append(disk, file, encoded, *arrays)


def append(disk: Disk, file: int, head: bytes, *bodies: Buffer) -> int:
    """Appends an encoded record to an open file; returns its length in bytes. Raises `OSError`."""
    left, total = frames.whole(head, *bodies), 0
    while left:  # a write may be short
        written = disk.write(file, left)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        total += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]
    return total


def read(disk: Disk, path: Path) -> Iterator[Record]:
    """Yields every whole record in order. Bytes after the last one are a torn tail, which was acknowledged to nobody.

    Raises:
        JournalError: a record is damaged and a whole one follows it, so the damaged one had been acknowledged.
    """

    def decoded(found: Frame) -> Record:
        try:
            return Record(msgspec.msgpack.decode(found.head, type=Head), found.body, found.end)
        except msgspec.MsgspecError as error:
            raise JournalError(
                f"{path}: byte {found.start}: not this version's journal: {error}: {remedy(path)}"
            ) from error

    with disk.read(path) as content:
        try:
            yield from map(decoded, frames.read(content))
        except Damaged as error:
            raise JournalError(
                f"{path}: the record at byte {error.at} is damaged, and {len(error.behind)} whole ones stand behind it "
                f"(the last: {decoded(error.behind[-1]).head}): {remedy(path)}"
            ) from error


def remedy(path: Path) -> str:
    """Advice for the user about a journal that cannot be used whole."""
    return (
        "nothing is cut off, for learners may have seen those merges. Restore the volume, as new as there is: merges "
        "that it then lacks are lost, and learners take the versions before them. Or, to lose more and go on from the "
        f"newest checkpoint in the bucket, move {path.parent} away"
    )


@dataclass(frozen=True)
class Replay:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    newest: tuple[tuple[int, int], ...]
    """Version and file of each fragment."""
    machine: dict[str, Any]


def recall(disk: Disk, path: Path, layout: Layout, codec: str) -> tuple[Replay, int]:
    """Returns the state that the log at `path` describes, and the offset of the end of its last whole record.

    Raises:
        Terminal: the journal has another layout.
        JournalError: the journal lost something that it had acknowledged.
    """
    lineage, machine, end = "", dict[str, Any](), 0
    newest: list[tuple[int, int]] = []
    for record in read(disk, path):
        head = record.head
        if head.kind == "Run":
            _check(path, head.facts["fingerprint"], layout.fingerprint)
            lineage = head.facts["lineage"]
            newest = [(version, place) for version, place in head.facts["newest"]]
        elif head.kind == "Merge":
            newest[head.fragment] = head.version, head.place
        machine = known(machine, head)
        end = record.end
    if not machine:
        raise JournalError(f"{path}: the records at its start are damaged: {remedy(path)}")
    fragments = (_version(disk, path.parent, p, *each, codec) for p, each in enumerate(newest))
    return Replay(lineage, tuple(fragments), tuple(newest), machine), end


def known(machine: dict[str, Any], head: Head) -> dict[str, Any]:
    """Returns the machine's record, brought up to date with one more journal record."""
    if head.kind == "Clock":
        return {**machine, "machine": {**machine["machine"], **head.facts["machine"]}}
    return head.facts if head.kind in ("Merge", "State") else machine


def _check(path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise Terminal(
            "LayoutChanged",
            f"{path}: the journal has fragment layout {found[:12]}, the run {wanted[:12]}: "
            "model and outer.fragments must stay as they were",
        )


def _version(disk: Disk, directory: Path, p: int, version: int, place: int, codec: str) -> Version:
    """Reads a version from a fragment's file, which holds Θ, then momentum."""
    path = fragment(directory, p, place)
    found = next(read(disk, path), None)
    if found is None or (found.head.fragment, found.head.version) != (p, version):
        raise JournalError(f"{path}: version {version} is damaged, of which the log tells: {remedy(path)}")
    both = np.frombuffer(found.body, np.float32)
    half = both.size // 2
    return Version.make(version, both[:half], both[half:], codec)
