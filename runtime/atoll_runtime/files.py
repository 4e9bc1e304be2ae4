"""Files that are whole or not there."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"
"""End of the name of a file that is not whole yet."""


def sync(folder: Path) -> None:
    """Makes what was created, renamed and removed in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(folder: Path) -> None:
    """With the folders above it; each new one is durable when this returns."""
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def tidy(folder: Path) -> None:
    """Deletes what `replace` left there when its process was killed; while another one writes there its file, too."""
    for beside in folder.glob(f".*{PARTIAL}"):
        beside.unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Written beside, then renamed: who is killed or out of space leaves the file that stood before.

    Durable when it returns: after a power loss, too, no file is missing that a later one speaks of.
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
