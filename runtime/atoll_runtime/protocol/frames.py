"""Checksummed frames around the records of a file: the journal's, and those of the event tape. A torn tail shows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np

FRAME = struct.Struct("<4sIIQ")
"""Magic, crc32c of all that follows it, bytes of the head, bytes of the body."""
LENGTHS = struct.Struct("<IQ")

Buffer = bytes | bytearray | memoryview


def checksum(*buffers: Buffer) -> int:
    """crc32c of the buffers, end to end."""
    crc = int(google_crc32c.value(b""))
    for buffer in buffers:
        if memoryview(buffer).nbytes:  # numpy refuses an empty one, and passes the others on without a copy
            crc = int(google_crc32c.extend(crc, np.frombuffer(buffer, np.uint8)))
    return crc


def frame(magic: bytes, head: bytes, bodies: Sequence[Buffer]) -> bytes:
    """What stands before the head."""
    size = sum(memoryview(body).nbytes for body in bodies)
    crc = checksum(LENGTHS.pack(len(head), size), head, *bodies)
    return FRAME.pack(magic, crc, len(head), size)


def take(magic: bytes, content: Any, start: int) -> tuple[Any, Any, int] | None:
    """Head and body of the record at `start`, slices of `content`, and where it ends; None when it is torn or
    damaged."""
    found = content[start : start + FRAME.size]
    if len(found) < FRAME.size:
        return None
    name, crc, head_size, body_size = FRAME.unpack(found)
    body_at = start + FRAME.size + head_size
    end = body_at + body_size
    if name != magic or end > len(content):  # never asks for the memory that a damaged length names
        return None
    head, body = content[start + FRAME.size : body_at], content[body_at:end]
    whole = checksum(found[-LENGTHS.size :], head, body) == crc
    return (head, body, end) if whole else None
