"""Journal records on disk: a checksummed frame around a msgpack head and raw arrays; a torn tail shows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import google_crc32c
import msgspec

FRAME = struct.Struct("<4sIIQ")
"""Magic, crc32c of the rest, bytes of the head, bytes of the body."""
MAGIC = b"ATJ1"
LIMIT = 1 << 40


class Head(msgspec.Struct, frozen=True):
    """What a record says. `Merge` and `Fragment` carry Θ and momentum as their body."""

    kind: Literal["Run", "Fragment", "Merge", "State"]
    facts: dict[str, Any] = {}
    """`Run`: uid, fingerprint, lineage. `State` and `Merge`: the machine's record."""
    fragment: int = -1
    version: int = -1


@dataclass(frozen=True)
class Record:
    """A record as read, and the offset behind it."""

    head: Head
    body: bytes
    end: int


def write(file: BinaryIO, head: Head, *arrays: memoryview) -> int:
    """Appends a record; gives its length in bytes. Does not sync."""
    encoded = msgspec.msgpack.encode(head)
    size = sum(array.nbytes for array in arrays)
    lengths = struct.pack("<IQ", len(encoded), size)
    crc = google_crc32c.extend(google_crc32c.value(lengths), encoded)
    for array in arrays:
        crc = google_crc32c.extend(crc, bytes(array))
    file.write(FRAME.pack(MAGIC, crc, len(encoded), size))
    file.write(encoded)
    for array in arrays:
        file.write(array)
    return FRAME.size + len(encoded) + size


def read(path: Path) -> Iterator[Record]:
    """Every whole record in order; ends at the first that is torn or damaged."""
    with path.open("rb") as file:
        end = 0
        while len(frame := file.read(FRAME.size)) == FRAME.size:
            magic, crc, head_size, body_size = FRAME.unpack(frame)
            if magic != MAGIC or head_size + body_size > LIMIT:
                return
            encoded = file.read(head_size)
            body = file.read(body_size) if len(encoded) == head_size else b""
            if len(encoded) < head_size or len(body) < body_size:
                return
            found = google_crc32c.value(struct.pack("<IQ", head_size, body_size))
            if google_crc32c.extend(google_crc32c.extend(found, encoded), body) != crc:
                return
            end += FRAME.size + head_size + body_size
            yield Record(msgspec.msgpack.decode(encoded, type=Head), body, end)
