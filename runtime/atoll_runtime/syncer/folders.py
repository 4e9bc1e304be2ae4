"""The folders of journals on a volume: of this run, of an earlier run, and of earlier numbers of shards."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from atoll_runtime.interfaces import Disk

log = logging.getLogger(__name__)

LAYOUT = "layout-"
"""The prefix of a layout's folder (`plan/pods/syncer.py`)."""


def forget_others(directory: Path) -> None:
    """Removes the folders of earlier layouts. Call it once `directory` holds a journal of the present layout."""
    if not directory.name.startswith(LAYOUT):
        return
    for other in directory.parent.glob(f"{LAYOUT}*"):
        if other != directory:
            log.info("%s: of an earlier number of shards: removed", other)
            shutil.rmtree(other, ignore_errors=True)


def logs(disk: Disk, directory: Path) -> list[Path]:
    """Oldest first."""
    return disk.files(directory, "log-*.wal")


def fragment(directory: Path, p: int, place: int) -> Path:
    """One of the two files of fragment `p`."""
    return directory / f"fragment-{p:05d}-{place}.wal"


def tidy(disk: Disk, directory: Path, newest: Path) -> None:
    """Removes all logs except the newest. It does not sync; the next `resume` removes any that come back."""
    for old in disk.files(directory, "log-*"):
        if old != newest:
            disk.remove(old)


def set_aside(disk: Disk, directory: Path, uid: str) -> None:
    """Moves another run's journal aside. One journal of each run is kept."""
    target = directory.with_name(f"{directory.name}-of-{uid}")
    disk.remove(target)
    disk.rename(directory, target)
    disk.sync_folder(directory.parent)
    disk.make(directory)
    log.warning("%s held the journal of run %s: set aside as %s, not used", directory, uid, target.name)
