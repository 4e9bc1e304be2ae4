"""What a segment of the journal holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll_runtime.interfaces import Disk
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer import records
from atoll_runtime.syncer.errors import JournalError, Terminal
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.state import Version


class AnotherRun(Exception):
    """The segment is of the run `uid`."""

    def __init__(self, uid: str) -> None:
        super().__init__(uid)
        self.uid = uid


@dataclass(frozen=True)
class Replay:
    """What a journal held."""

    lineage: str
    fragments: tuple[Version, ...]
    machine: dict[str, Any]


def read(disk: Disk, path: Path, uid: str, layout: Layout, codec: str) -> tuple[Replay, int]:
    """What stands in it, and the offset behind its last whole record.

    Raises:
        AnotherRun: the segment is not of the run `uid`.
        Terminal: it is of another layout.
        JournalError: it lost what it had acknowledged.
    """
    lineage, machine, end = "", dict[str, Any](), 0
    arrays: dict[int, tuple[int, bytes]] = {}
    for record in records.read(disk, path):
        head = record.head
        if head.kind == "Run":
            if head.facts["uid"] != uid:
                raise AnotherRun(head.facts["uid"])
            _check(path, head.facts["fingerprint"], layout.fingerprint)
            lineage = head.facts["lineage"]
        if head.kind in ("Fragment", "Merge"):
            arrays[head.fragment] = head.version, record.body
        machine = known(machine, head)
        end = record.end
    if not lineage or not machine or len(arrays) < len(layout.fragments):
        raise JournalError(f"{path}: the snapshot at its start is damaged: {records.remedy(path)}")
    fragments = (_version(*arrays[p], codec) for p in range(len(layout.fragments)))
    return Replay(lineage, tuple(fragments), machine), end


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


def _version(number: int, body: bytes, codec: str) -> Version:
    """A fragment from a record's body: Θ, then momentum."""
    both = np.frombuffer(body, np.float32)
    half = both.size // 2
    return Version.make(number, both[:half], both[half:], codec)
