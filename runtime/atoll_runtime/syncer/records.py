"""The journal's records on disk; the event tape appends its own in the same way."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from atoll_runtime.interfaces import Disk
from atoll_runtime.protocol import frames
from atoll_runtime.protocol.frames import Buffer, Damaged, Frame
from atoll_runtime.syncer.errors import JournalError


class Head(msgspec.Struct, frozen=True):
    """What a record says. A `Fragment`, in a file of its own, carries Θ and momentum as its body."""

    kind: Literal["Run", "Fragment", "Merge", "State", "Clock"]
    facts: dict[str, Any] = {}
    """`Run`: uid, fingerprint, lineage, newest (version and file of each fragment). `State` and `Merge`: the machine's
    record. `Clock`: what of it is new."""
    fragment: int = -1
    version: int = -1
    place: int = -1
    """Which of its two files holds it."""

    def __str__(self) -> str:
        named = f"{self.kind} of fragment {self.fragment}, version {self.version}"
        return named if self.version >= 0 else self.kind


@dataclass(frozen=True)
class Record:
    """A record as read, and the offset behind it."""

    head: Head
    body: bytes
    end: int


def write(disk: Disk, file: int, head: Head, *arrays: memoryview) -> int:
    """Appends a record to an open file; gives its length in bytes. Does not sync.

    Raises:
        OSError: the record may be there in part.
        JournalError: a number does not fit into a record; nothing was written.
    """
    try:
        encoded = msgspec.msgpack.encode(head)
    except OverflowError as error:
        raise JournalError(f"a record of a {head.kind} cannot be written: {error}") from error
    return append(disk, file, encoded, *arrays)


def append(disk: Disk, file: int, head: bytes, *bodies: Buffer) -> int:
    """Appends an encoded record to an open file; gives its length in bytes. Raises `OSError`."""
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
    """Every whole record in order. What is behind the last one is a torn tail, never acknowledged to anyone.

    Raises:
        JournalError: a record is damaged that was acknowledged, for a whole one stands behind it.
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
    """What to do with a journal that cannot be used whole."""
    return (
        "nothing is cut off, for learners may have seen those merges. Restore the volume, as new as there is: merges "
        "that it then lacks are lost, and learners take the versions before them. Or, to lose more and go on from the "
        f"newest checkpoint in the bucket, move {path.parent} away"
    )
