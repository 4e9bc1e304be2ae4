"""Files that are either whole or absent."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"
"""Suffix of a file that is not whole yet."""


def sync(folder: Path) -> None:
    """Makes creations, renames and removals in the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(folder: Path) -> None:
    """Creates a folder and those above it. Each new one is durable when this returns."""
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def replace(path: Path, data: bytes) -> None:
    """Replaces a file: writes a partial file beside it, then renames it. A killed process or a full disk leaves the old
    file. The new file is durable when this returns, so that after a power loss no file is missing that a later one
    refers to.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
