"""The journal's next segment while it is written, a little at a time, beside the one that merges go to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll_runtime.interfaces import Disk
from atoll_runtime.syncer import records
from atoll_runtime.syncer.records import Head
from atoll_runtime.syncer.room import ELEMENT
from atoll_runtime.syncer.state import Version


class Draft:
    """A snapshot of the caller's fragments, of which any may `change` until it is whole. Calls raise the disk's
    `OSError`."""

    def __init__(
        self, disk: Disk, path: Path, facts: Mapping[str, Any], fragments: Sequence[Version]
    ) -> None:
        self._disk, self._fragments = disk, fragments
        self._segment, self._path = path, path.with_suffix(".draft")
        self.file = disk.open(self._path, new=True)
        self.length = records.write(disk, self.file, Head("Run", dict(facts)))
        self.again = 0
        """Bytes of fragments that changed after they were written, and are written once more."""
        self._left = deque(range(len(self._fragments)))
        self._record: list[memoryview] = []
        """What is left of the record that is being written."""

    def change(self, p: int) -> None:
        """Fragment `p` has another version."""
        if p not in self._left:
            self._left.append(p)
            self.again += ELEMENT * self._fragments[p].theta.size

    def write(self, most: float = math.inf) -> bool:
        """Writes at most so many bytes. Whether all fragments are written, as they are now. Does not sync."""
        while most > 0 and (self._record or self._left):
            if not self._record:
                p = self._left.popleft()
                each = self._fragments[p]
                head = Head("Fragment", fragment=p, version=each.version)
                self._record = records.encode(head, each.theta.data, each.momentum.data)
            written = records.put(self._disk, self.file, self._record, most)
            self.length += written
            most -= written
        return not (self._record or self._left)

    def end(self, machine: Mapping[str, Any]) -> None:
        """Writes the machine's record behind the fragments; the segment then has its name, durably."""
        self.length += records.write(self._disk, self.file, Head("State", dict(machine)))
        self._disk.sync(self.file)
        self._disk.rename(self._path, self._segment)
        self._disk.sync_folder(self._segment.parent)
