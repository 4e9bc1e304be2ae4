"""What a journal holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll_runtime.interfaces import Disk
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.errors import JournalError, Terminal
from atoll_runtime.syncer.folders import fragment
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.state import Version


class AnotherRun(Exception):
    """The journal is of the run `uid`."""

    def __init__(self, uid: str) -> None:
        super().__init__(uid)
        self.uid = uid


@dataclass(frozen=True)
class Replay:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    newest: tuple[tuple[int, int], ...]
    """Version and file of each."""
    machine: dict[str, Any]


def read(disk: Disk, path: Path, uid: str, layout: Layout, codec: str) -> tuple[Replay, int]:
    """What the log at `path` tells of, and the offset behind its last whole record.

    Raises:
        AnotherRun: the journal is not of the run `uid`.
        Terminal: it is of another layout.
        JournalError: it lost what it had acknowledged.
    """
    lineage, machine, end = "", dict[str, Any](), 0
    newest: list[tuple[int, int]] = []
    for record in records.read(disk, path):
        head = record.head
        if head.kind == "Run":
            if head.facts["uid"] != uid:
                raise AnotherRun(head.facts["uid"])
            _check(path, head.facts["fingerprint"], layout.fingerprint)
            lineage, newest = (
                head.facts["lineage"],
                [(version, place) for version, place in head.facts["newest"]],
            )
        elif head.kind == "Merge":
            newest[head.fragment] = head.version, head.place
        machine = known(machine, head)
        end = record.end
    if not machine:
        raise JournalError(f"{path}: the records at its start are damaged: {records.remedy(path)}")
    fragments = (_version(disk, path.parent, p, *each, codec) for p, each in enumerate(newest))
    return Replay(lineage, tuple(fragments), tuple(newest), machine), end


def known(machine: dict[str, Any], head: Head) -> dict[str, Any]:
    """What is known of the machine after another record."""
    if head.kind == "Clock":
        return {**machine, "machine": {**machine["machine"], **head.facts["machine"]}}
    return head.facts if head.kind in ("Merge", "State") else machine


def _check(path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise Terminal(
            "LayoutChanged",
            f"{path}: the journal has fragment layout {found[:12]}, the run {wanted[:12]}: "
            "model and outer.fragments must stay as they were",
        )


def _version(disk: Disk, directory: Path, p: int, version: int, place: int, codec: str) -> Version:
    """From a fragment's file: Θ, then momentum."""
    path = fragment(directory, p, place)
    found = next(records.read(disk, path), None)
    if found is None or (found.head.fragment, found.head.version) != (p, version):
        raise JournalError(
            f"{path}: version {version} is damaged, of which the log tells: {records.remedy(path)}"
        )
    both = np.frombuffer(found.body, np.float32)
    half = both.size // 2
    return Version.make(version, both[:half], both[half:], codec)
