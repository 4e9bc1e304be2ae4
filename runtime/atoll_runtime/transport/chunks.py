"""A body in chunks, each with its checksum, and back."""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c
import numpy as np

from atoll_runtime.transport.wire import Chunk, WireError, decode_chunk, encode

CHUNK = 1 << 20
"""Bytes."""
MESSAGE_LIMIT = 4 << 20
"""Bytes of one gRPC message."""


def split(body: memoryview, size: int = 0) -> Iterator[bytes]:
    """Encoded chunks of `body`, in order, and of zeros behind it up to `size` bytes: nobody copies it for them."""
    for offset in range(0, len(body), CHUNK):
        data = body[offset : offset + CHUNK]
        yield encode(Chunk(offset, _crc(data), data))
    for offset in range(len(body), size, CHUNK):
        zeros = memoryview(bytes(min(CHUNK, size - offset)))
        yield encode(Chunk(offset, _crc(zeros), zeros))


def filled(body: memoryview, size: int) -> memoryview:
    """A copy of `body` with zeros behind it up to `size` bytes, as it arrives at the other end."""
    return memoryview(bytearray(body).ljust(size, b"\0"))


class Assembly:
    """Puts chunks together; they must come in order, whole and unharmed."""

    def __init__(self, size: int) -> None:
        self.body = memoryview(np.empty(size, np.uint8).data)
        self.filled = 0

    def add(self, data: bytes) -> None:
        """Raises `WireError` when the chunk is out of order, too long or damaged."""
        chunk = decode_chunk(data)
        end = chunk.offset + len(chunk.data)
        if chunk.offset != self.filled or end > len(self.body):
            raise WireError(f"chunk [{chunk.offset}, {end}) after {self.filled} of {len(self.body)} bytes")
        if _crc(chunk.data) != chunk.crc:
            raise WireError(f"chunk at {chunk.offset}: the checksum does not match")
        self.body[chunk.offset : end] = chunk.data
        self.filled = end

    @property
    def whole(self) -> bool:
        return self.filled == len(self.body)


def _crc(data: memoryview) -> int:
    found: int = google_crc32c.value(np.frombuffer(data, np.uint8))  # it takes no memoryview
    return found
