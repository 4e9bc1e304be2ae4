"""Journal records on disk: a checksummed frame around a msgpack head and raw arrays; a torn tail shows."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import msgspec
import numpy as np

from atoll_runtime.interfaces import Disk
from atoll_runtime.syncer.errors import JournalError

FRAME = struct.Struct("<4sIIQ")
"""Magic, crc32c of the rest, bytes of the head, bytes of the body."""
LENGTHS = struct.Struct("<IQ")
MAGIC = b"ATJ1"


class Head(msgspec.Struct, frozen=True):
    """What a record says. `Merge` and `Fragment` carry Θ and momentum as their body."""

    kind: Literal["Run", "Fragment", "Merge", "State", "Clock"]
    facts: dict[str, Any] = {}
    """`Run`: uid, fingerprint, lineage. `State` and `Merge`: the machine's record. `Clock`: what of it is new."""
    fragment: int = -1
    version: int = -1

    def __str__(self) -> str:
        return (
            f"{self.kind} of fragment {self.fragment}, version {self.version}"
            if self.version >= 0
            else self.kind
        )


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
    # As numpy bytes, the checksum takes them without a copy.
    bodies = [np.frombuffer(array, np.uint8) for array in arrays if array.nbytes]
    lengths = LENGTHS.pack(len(encoded), sum(body.size for body in bodies))
    crc = google_crc32c.extend(google_crc32c.value(lengths), encoded)
    for body in bodies:
        crc = google_crc32c.extend(crc, body)
    left = [memoryview(FRAME.pack(MAGIC, crc, *LENGTHS.unpack(lengths)) + encoded), *(b.data for b in bodies)]
    length = sum(part.nbytes for part in left)
    while left:  # a write may be short: every turn takes at least a byte
        written = disk.write(file, left)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]
    return length


def read(disk: Disk, path: Path) -> Iterator[Record]:
    """Every whole record in order. What is behind the last one is a torn tail, never acknowledged to anyone.

    Raises:
        JournalError: a record is damaged that was acknowledged, for a whole one stands behind it.
    """
    with disk.read(path) as content:
        end = 0
        while (record := take(content, end, path)) is not None:
            end = record.end
            yield record
        behind = list(whole(content, end + 1, path))
    if behind:
        raise JournalError(
            f"{path}: the record at byte {end} is damaged, and {len(behind)} whole ones stand behind it "
            f"(the last: {behind[-1].head}): {remedy(path)}"
        )


def take(content: Any, start: int, path: Path) -> Record | None:
    """The record at byte `start`; None if it is not whole."""
    frame = content[start : start + FRAME.size]
    if len(frame) < FRAME.size:
        return None
    magic, crc, head_size, body_size = FRAME.unpack(frame)
    body_at = start + FRAME.size + head_size
    end = body_at + body_size
    if magic != MAGIC or end > len(content):  # never asks for the memory that a damaged length names
        return None
    encoded, body = content[start + FRAME.size : body_at], content[body_at:end]
    found = google_crc32c.value(frame[-LENGTHS.size :])
    if google_crc32c.extend(google_crc32c.extend(found, encoded), body) != crc:
        return None
    try:
        return Record(msgspec.msgpack.decode(encoded, type=Head), body, end)
    except msgspec.MsgspecError as error:
        raise JournalError(
            f"{path}: byte {start}: not this version's journal: {error}: {remedy(path)}"
        ) from error


def whole(content: Any, start: int, path: Path) -> Iterator[Record]:
    """Every whole record from byte `start` on, whatever stands between them."""
    while (at := content.find(MAGIC, start)) >= 0:
        record = take(content, at, path)
        if record is not None:
            yield record
        start = at + 1 if record is None else record.end


def remedy(path: Path) -> str:
    """What to do with a journal that cannot be used whole."""
    return (
        "nothing is cut off, for learners may have seen those merges. Restore the volume, as new as there is: merges "
        "that it then lacks are lost, and learners take the versions before them. Or, to lose more and go on from the "
        f"newest checkpoint in the bucket, move {path.parent} away"
    )
