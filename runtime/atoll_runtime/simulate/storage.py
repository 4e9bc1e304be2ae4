"""Disk and bucket in memory, for shards that never restart."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll_runtime.payloads import Cut, Part, Regions, Skipped, StoreError


class ScratchDisk:
    """See `interfaces.Disk`. It keeps nothing, so that a large model fits in memory; without a restart nothing is
    read."""

    def files(self, folder: Path, pattern: str) -> list[Path]:
        return []

    def open(self, path: Path, *, new: bool = False) -> int:
        return 0

    def lock(self, path: Path) -> int:
        return 0

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        return sum(part.nbytes for part in parts)

    def volume(self, folder: Path) -> int:
        """See `Disk`. Its size is unlimited."""
        return sys.maxsize

    def _nothing(self, *facts: Any, **more: Any) -> Any:
        """Does nothing, because there are no files."""

    make = sync = sync_folder = close = rename = remove = read = _nothing


class MemoryBucket:
    """See `interfaces.Bucket`. Holds the newest cut of one shard, from which units are seeded."""

    uri = "memory://"

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self._part: Part | None = None

    def ready(self) -> None:
        """See `Bucket`."""

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
