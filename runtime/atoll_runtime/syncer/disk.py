"""The disk of production: files of the operating system."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll_runtime.files import sync
from atoll_runtime.interfaces import Disk


class LocalDisk(Disk):
    """See `interfaces.Disk` for each method."""

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def files(self, folder: Path, pattern: str) -> list[Path]:
        return sorted(folder.glob(pattern))

    def open(self, path: Path, *, new: bool = False) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | (os.O_CREAT | os.O_TRUNC if new else 0), 0o644)

    def lock(self, path: Path) -> int:
        # The kernel releases the lock when the process ends, in whatever way it ends.
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise
        return file

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        return os.writev(file, parts)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def sync_folder(self, folder: Path) -> None:
        sync(folder)

    def close(self, file: int) -> None:
        os.close(file)

    @contextmanager
    def read(self, path: Path) -> Iterator[Any]:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()

    def volume(self, folder: Path) -> int:
        found = os.statvfs(folder)
        if not found.f_blocks:  # the file system does not report its size
            return sys.maxsize
        return (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize


LOCAL = LocalDisk()
