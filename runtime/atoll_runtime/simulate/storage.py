"""Disk and bucket in memory, for shards that never restart."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from atoll_runtime.interfaces import Volume
from atoll_runtime.payloads import Cut, Part, Regions, Skipped, StoreError


class ScratchDisk:
    """See `interfaces.Disk`. It counts the bytes written and keeps none, so that a large model fits in memory."""

    def __init__(self) -> None:
        self._sizes: list[int] = []

    def open(self, path: Path, *, new: bool = False) -> int:
        self._sizes.append(0)
        return len(self._sizes) - 1

    def lock(self, path: Path) -> int:
        return self.open(path)

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        written = sum(part.nbytes for part in parts)
        self._sizes[file] += written
        return written

    def size(self, file: int) -> int:
        return self._sizes[file]

    def truncate(self, file: int, size: int) -> None:
        self._sizes[file] = size

    def files(self, folder: Path, pattern: str) -> list[Path]:
        return []

    def read(self, path: Path) -> AbstractContextManager[Any]:
        raise FileNotFoundError(path)

    def volume(self, folder: Path) -> Volume:
        """See `Disk`. Its size is unlimited."""
        return Volume(sys.maxsize)

    def _ignore(self, *facts: Any, **more: Any) -> None:
        """Does nothing, because there are no files."""

    make = sync = sync_folder = close = rename = remove = _ignore


class MemoryBucket:
    """See `interfaces.Bucket`. Holds the newest cut of one shard, from which units are seeded."""

    uri = "memory://"

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self._part: Part | None = None

    def save_part(self, part: Part) -> bool:
        self._part = part
        return True

    def read_part(self, step: int, shard: int, shards: int) -> Part:
        if self._part is None or self._part.step != step:
            raise StoreError(f"no part of step {step}")
        return self._part

    def complete(self, step: int, shards: int, meta: dict[str, Any]) -> None:
        part = self.read_part(step, 0, 1)
        theta = {name: slice_.theta for name, slice_ in part.tensors.items()}
        momentum = {name: slice_.momentum for name, slice_ in part.tensors.items()}
        history = {"machines": [part.meta["machine"]], "lineages": [part.meta["lineage"]]}
        self.cut = Cut(step, theta, momentum, part.versions, meta | history)

    def newest(self, *, own: Regions | None = None) -> tuple[Cut | None, list[Skipped]]:
        return self.cut, []

    def prune(self, keep: int, saved: int, now: float) -> None:
        """See `Bucket`."""
