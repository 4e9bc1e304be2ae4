"""The files of an event tape: numbered segments, together never larger than a limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atoll_runtime.interfaces import Disk
from atoll_runtime.protocol.frames import FRAME, Buffer
from atoll_runtime.syncer import records

PATTERN = "tape-*.atl"


class Segments:
    """Appends to the newest segment, and removes the oldest ones to make room. Use it from one thread at a time. Its
    methods raise `OSError`."""

    def __init__(self, disk: Disk, folder: Path, limit: int) -> None:
        """`limit`: bytes of all segments, including those of earlier processes."""
        self._disk, self._folder, self._limit = disk, folder, limit
        self._sizes: dict[Path, int] = {}
        """Oldest first."""
        for path in disk.files(folder, PATTERN):
            file = disk.open(path)
            self._sizes[path] = disk.size(file)
            disk.close(file)
        self._number = max(map(number, self._sizes), default=0)
        self._path, self._file = folder, -1

    def open(self) -> None:
        """Starts another segment."""
        self.close()
        self._number += 1
        self._path = self._folder / PATTERN.replace("*", f"{self._number:08d}")
        self._sizes[self._path] = 0
        self._file = self._disk.open(self._path, new=True)

    def append(self, head: bytes, bodies: Sequence[Buffer]) -> None:
        """Adds a record. Does not sync."""
        size = FRAME.size + len(head) + sum(memoryview(body).nbytes for body in bodies)
        for oldest in list(self._sizes):
            if sum(self._sizes.values()) + size <= self._limit:
                break
            if oldest == self._path:
                raise OSError(f"a record of {size} bytes does not fit into the tape's limit of {self._limit}")
            del self._sizes[oldest]
            self._disk.remove(oldest)
        self._sizes[self._path] += records.append(self._disk, self._file, head, *bodies)

    def close(self) -> None:
        """Closes the newest segment."""
        file, self._file = self._file, -1
        if file >= 0:
            self._disk.close(file)


def number(path: Path) -> int:
    """Returns a segment's number in its tape."""
    digits = path.stem.removeprefix("tape-")
    return int(digits) if digits.isdecimal() else 0
