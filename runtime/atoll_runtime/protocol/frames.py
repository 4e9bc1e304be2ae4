"""Checksummed records of the journal and of the event tape: a frame, a msgpack head and raw arrays."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

MAGIC = b"ATJ1"
FRAME = struct.Struct("<4sIIQ")
"""Magic, crc32c of all that follows it, bytes of the head, bytes of the body."""
LENGTHS = struct.Struct("<IQ")

Buffer = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """A record that was read: copies of its head and body, the offset of its first byte and of the byte behind it."""

    head: bytes
    body: bytes
    start: int
    end: int


class Damaged(ValueError):
    """A record is damaged, and whole records follow it."""

    def __init__(self, at: int, behind: list[Frame]) -> None:
        super().__init__(f"the record at byte {at} is damaged, whole ones follow from {behind[0].start}")
        self.at, self.behind = at, behind


def checksum(*buffers: Buffer) -> int:
    """crc32c of the buffers, end to end."""
    crc = int(google_crc32c.value(b""))
    for buffer in buffers:
        if memoryview(buffer).nbytes:  # numpy refuses an empty one, and passes the others on without a copy
            crc = int(google_crc32c.extend(crc, np.frombuffer(buffer, np.uint8)))
    return crc


def whole(head: bytes, *bodies: Buffer) -> list[memoryview]:
    """A record's bytes, without a copy of its bodies."""
    size = sum(memoryview(body).nbytes for body in bodies)
    crc = checksum(LENGTHS.pack(len(head), size), head, *bodies)
    first = memoryview(FRAME.pack(MAGIC, crc, len(head), size) + head)
    return [first, *(memoryview(body).cast("B") for body in bodies if memoryview(body).nbytes)]


def take(content: Any, start: int) -> Frame | None:
    """The record at `start`; None if it is torn or damaged."""
    found = content[start : start + FRAME.size]
    if len(found) < FRAME.size:
        return None
    name, crc, head_size, body_size = FRAME.unpack(found)
    body_at = start + FRAME.size + head_size
    end = body_at + body_size
    if name != MAGIC or end > len(content):  # a damaged length must not allocate memory
        return None
    head, body = content[start + FRAME.size : body_at], content[body_at:end]
    whole = checksum(found[-LENGTHS.size :], head, body) == crc
    return Frame(head, body, start, end) if whole else None


def read(content: Any) -> Iterator[Frame]:
    """Every whole record of bytes or of a mapped file, in order. Ends before a torn tail. Raises `Damaged`."""
    at = 0
    while (found := take(content, at)) is not None:
        yield found
        at = found.end
    behind, search = [], at + 1
    while (search := content.find(MAGIC, search)) >= 0:
        if (found := take(content, search)) is not None:
            behind.append(found)
        search = search + 1 if found is None else found.end
    if behind:
        raise Damaged(at, behind)
