"""A tape on the disk, as it is read: a folder of segments, or one segment."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from atoll_runtime.protocol.encoding import TapeError, plain
from atoll_runtime.protocol.tape import Facts, Opening, read
from atoll_runtime.syncer import segments


def load(path: Path) -> Iterator[tuple[str, bytes | mmap.mmap]]:
    """Name and bytes of each segment, oldest first."""
    paths = segments.found(path) if path.is_dir() else [path]
    if not paths:
        raise TapeError(f"{path}: no {segments.PATTERN} in this folder")
    for each in paths:
        with each.open("rb") as file:
            empty = each.stat().st_size == 0
            yield each.name, b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def facts_of(path: Path) -> Facts:
    """Whose tape it is."""
    for name, tape in load(path):
        for stored in read(tape, name):
            if isinstance(stored.record, Opening):
                return stored.record.facts
    raise nothing_whole(path)


def records(path: Path) -> Iterator[dict[str, object]]:
    """Each record as a JSON object to be read, without its arrays.

    Raises:
        TapeError: no tape, or a damaged one.
        OSError: it cannot be read.
    """
    some = False
    for name, tape in load(path):
        for stored in read(tape, name):
            some = True
            yield {"segment": name, "byte": stored.start, **plain(stored.record)}
    if not some:
        raise nothing_whole(path)


def nothing_whole(path: Path) -> TapeError:
    """What to say of a path below which no record can be read."""
    return TapeError(f"{path}: no whole record of an event tape")
