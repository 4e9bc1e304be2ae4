"""Reads a tape on the disk: a folder of segments, or one segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from atoll_runtime.protocol import frames
from atoll_runtime.protocol.tape import FORMAT, AnyEntry, Opening, TapeError, plain
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.tape import PATTERN


@dataclass(frozen=True)
class Stored:
    """A record as read, and its place on the tape."""

    segment: str
    start: int
    entry: AnyEntry
    body: bytes
    left: int
    """Bytes of the segment after the record."""


def read(path: Path) -> Iterator[Stored]:
    """Yields every record, segment by segment, without torn tails.

    Raises:
        TapeError: there is no tape, it is damaged, or another version of this program wrote it.
        OSError: the tape cannot be read.
    """
    paths = sorted(path.glob(PATTERN))
    if path.is_dir() and not paths:
        raise TapeError(f"{path}: no {PATTERN} in this folder")
    some = False
    for each in paths or [path]:
        with LOCAL.read(each) as content:
            try:
                for frame in frames.read(content):
                    some = True
                    entry = decoded(frame, each.name)
                    if isinstance(entry, Opening) != (frame.start == 0):
                        raise TapeError(
                            f"{each.name}: byte {frame.start}: a segment starts with an Opening, and has one"
                        )
                    yield Stored(each.name, frame.start, entry, frame.body, len(content) - frame.end)
            except frames.Damaged as error:
                raise TapeError(f"{each.name}: {error}") from error
    if not some:
        raise TapeError(f"{path}: no whole record of an event tape")


def decoded(frame: frames.Frame, name: str) -> AnyEntry:
    """Decodes a record. Raises `TapeError` if this version does not know it."""
    try:
        entry: AnyEntry = msgspec.msgpack.decode(frame.head, type=AnyEntry)
    except msgspec.MsgspecError as error:
        raise TapeError(
            f"{name}: byte {frame.start}: not a record of this version's tape: {error}"
        ) from error
    if isinstance(entry, Opening) and entry.format != FORMAT:
        raise TapeError(f"{name}: format {entry.format}, this version reads {FORMAT}")
    return entry


def records(path: Path) -> Iterator[dict[str, object]]:
    """Yields each record as a readable JSON object, without its arrays. Raises as `read` does."""
    for stored in read(path):
        yield {"segment": stored.segment, "byte": stored.start, **plain(stored.entry)}
