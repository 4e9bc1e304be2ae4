"""The files of an event tape: numbered segments whose bytes together never exceed a limit."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from atoll_runtime.protocol.frames import Buffer, frame
from atoll_runtime.protocol.tape import MAGIC

PATTERN = "tape-*.atl"
VOLUME_SHARE = 4
"""At most a quarter of the volume, which the journal needs more."""


@dataclass(frozen=True)
class Volume:
    """What a file system has for this process, in bytes."""

    size: int
    """Used and free, without what is kept for root."""
    free: int

    @classmethod
    def of(cls, folder: Path) -> Volume:
        """One that does not say how large it is has no end. Raises `OSError`."""
        found = os.statvfs(folder)
        if not found.f_blocks:
            return cls(sys.maxsize, sys.maxsize)
        usable = found.f_blocks - found.f_bfree + found.f_bavail
        return cls(usable * found.f_frsize, found.f_bavail * found.f_frsize)

    def share(self, limit: int) -> int:
        """The most that a tape of this limit takes of it."""
        return min(limit, self.size // VOLUME_SHARE)


class Segments:
    """Appends to the newest segment; the oldest ones make room. One thread at a time; raises `OSError`."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Makes the folder. `limit`: bytes, where the volume is not small."""
        folder.mkdir(parents=True, exist_ok=True)
        self.limit = Volume.of(folder).share(limit)
        self._folder = folder
        self._sizes = {path: path.stat().st_size for path in found(folder)}
        self._number = max((number(path) for path in self._sizes), default=0)
        self._file: BinaryIO | None = None
        self._path = folder

    def open(self) -> None:
        """Starts another segment."""
        self.close()
        self._number += 1
        self._path = self._folder / PATTERN.replace("*", f"{self._number:08d}")
        self._sizes[self._path] = 0
        self._file = self._path.open("wb")

    def append(self, head: bytes, bodies: Sequence[Buffer]) -> None:
        """Adds a record, which may not reach the disk before `flush`."""
        assert self._file is not None, "open() first"
        lead = frame(MAGIC, head, bodies)
        size = len(lead) + len(head) + sum(memoryview(body).nbytes for body in bodies)
        self._make_room(size)
        for part in (lead, head, *bodies):
            self._file.write(part)
        self._sizes[self._path] += size

    def flush(self) -> None:
        """Hands what was appended to the operating system; without a sync."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Closes the newest segment."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _make_room(self, size: int) -> None:
        used = sum(self._sizes.values())
        for path in [path for path in self._sizes if path != self._path]:
            if used + size <= self.limit:
                return
            used -= self._sizes.pop(path)
            path.unlink(missing_ok=True)
        if used + size > self.limit:
            raise OSError(f"a record of {size} bytes does not fit into the tape's limit of {self.limit}")


def found(folder: Path) -> list[Path]:
    """The segments of a folder, oldest first."""
    return sorted((path for path in folder.glob(PATTERN) if path.is_file()), key=number)


def number(path: Path) -> int:
    """A segment's place in its tape."""
    digits = path.stem.removeprefix("tape-")
    return int(digits) if digits.isdecimal() else 0
