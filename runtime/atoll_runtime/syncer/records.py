"""The records in the journal's files. The event tape appends its records in the same way."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from atoll_runtime.interfaces import Disk
from atoll_runtime.protocol import frames
from atoll_runtime.protocol.frames import Buffer, Damaged


class JournalError(Exception):
    """The journal cannot be read or written; the message names the file."""


class State(msgspec.Struct, frozen=True, tag=True):
    """What a shard knows besides its arrays."""

    number: int
    """Of two states the one with the higher number counts."""
    uid: str
    fingerprint: str
    lineage: str
    newest: tuple[tuple[int, int], ...]
    """The newest version of each fragment, and which of the fragment's two files holds it."""
    machine: dict[str, Any]
    """See `recovery.durable`."""


class Clock(msgspec.Struct, frozen=True, tag=True):
    """The run's clock, where it has advanced since the state before it."""

    step: int


class Arrays(msgspec.Struct, frozen=True, tag=True):
    """A version of a fragment. Θ, then momentum, float32, are the record's body."""

    fragment: int
    version: int


Head = State | Clock | Arrays


def encode(head: Head) -> bytes:
    """Raises `JournalError` for a number that does not fit into a record."""
    try:
        return msgspec.msgpack.encode(head)
    except OverflowError as error:
        raise JournalError(f"a record of a {type(head).__name__} cannot be written: {error}") from error


def append(disk: Disk, file: int, head: bytes, *bodies: Buffer) -> int:
    """Appends an encoded record to an open file; returns its length in bytes. Does not sync. Raises `OSError`."""
    left, total = frames.whole(head, *bodies), 0
    while left:  # a write may be short
        written = disk.write(file, left)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        total += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]
    return total


def read(disk: Disk, path: Path) -> Iterator[tuple[Head, bytes]]:
    """Yields the head and the body of every whole record in order. Bytes after the last one are a torn tail, which was
    acknowledged to nobody.

    Raises:
        JournalError: a record is damaged and a whole one follows it, so the damaged one had been acknowledged.
    """
    with disk.read(path) as content:
        try:
            for frame in frames.read(content):
                yield msgspec.msgpack.decode(frame.head, type=Head), frame.body
        except Damaged as error:
            raise JournalError(f"{path}: {error}: {remedy(path)}") from error
        except msgspec.MsgspecError as error:
            raise JournalError(f"{path}: not this version's journal: {error}: {remedy(path)}") from error


def state_file(directory: Path, number: int) -> Path:
    """The file of the state with this number."""
    return directory / f"state-{number % 2}.wal"


def fragment_file(directory: Path, p: int, place: int) -> Path:
    """One of the two files of fragment `p`."""
    return directory / f"fragment-{p:05d}-{place}.wal"


def newest(disk: Disk, directory: Path) -> State | None:
    """Returns the newest state in a journal's folder, with the clock behind it; None if no journal was ever begun.

    Raises:
        JournalError: no state is whole, and more than one was written.
    """
    found = list[State]()
    paths = disk.files(directory, "state-*.wal")
    for path in paths:
        for head, _ in read(disk, path):
            if isinstance(head, State):
                found.append(head)
            elif isinstance(head, Clock):
                machine = found[-1].machine
                of_machine = {**machine["machine"], "clock": head.step}
                found[-1] = replace(found[-1], machine={**machine, "machine": of_machine})
    if not found and state_file(directory, 1) in paths:
        raise JournalError(f"{directory}: both states are damaged: {remedy(paths[0])}")
    return max(found, key=lambda state: state.number, default=None)


def remedy(path: Path) -> str:
    """Advice for the user about a journal that cannot be used whole."""
    return (
        "nothing is changed, for learners may have seen those merges. Restore the volume, as new as there is: merges "
        "that it then lacks are lost, and learners take the versions before them. Or, to lose more and go on from the "
        f"newest checkpoint in the bucket, move {path.parent} away"
    )
