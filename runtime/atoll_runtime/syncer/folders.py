"""The folders of journals on a volume: a run's, an earlier run's, those of earlier numbers of shards."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from atoll_runtime.interfaces import Disk

log = logging.getLogger(__name__)

LAYOUT = "layout-"
"""How the folder of a layout begins (`plan/pods/syncer.py`)."""


def forget_others(directory: Path) -> None:
    """Removes what the layouts before this one left on the volume, once a journal of this one stands in `directory`."""
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
    """Removes all logs but the newest. Not synced: one that comes back is removed by the next `resume`."""
    for old in disk.files(directory, "log-*"):
        if old != newest:
            disk.remove(old)


def set_aside(disk: Disk, directory: Path, uid: str) -> None:
    """Moves another run's journal out of the way; one of each run is kept."""
    target = directory.with_name(f"{directory.name}-of-{uid}")
    disk.remove(target)
    disk.rename(directory, target)
    disk.sync_folder(directory.parent)
    disk.make(directory)
    log.warning("%s held the journal of run %s: set aside as %s, not used", directory, uid, target.name)
