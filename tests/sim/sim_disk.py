"""A shard's volume in simulated time. When the power fails, data that was not synced may be lost or torn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from atoll_runtime.interfaces import Volume
from atoll_runtime.simulate.eventloop import Killed, Process


@dataclass(eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""

    def lose_power(self, rng: random.Random) -> None:
        """Keep what was synced, and a part of what was not, perhaps with a hole."""
        base = bytes(self.synced)
        common = min(len(base), len(self.data))
        if rng.random() < 0.5:
            self.data = bytearray(base)
            return
        if self.data[:common] != base[:common]:  # it was truncated and rewritten
            del self.data[rng.randint(0, len(self.data)) :]
            self.synced = bytes(self.data)
            return
        tail = bytearray(self.data[len(base) :])
        del tail[rng.randint(0, len(tail)) :]
        if len(tail) > 4 and rng.random() < 0.5:
            start = rng.randrange(len(tail))
            stop = rng.randint(start, len(tail))
            tail[start:stop] = bytes(stop - start)
        self.data = bytearray(base) + tail
        self.synced = bytes(self.data)


Change = tuple[Path, File | None]
"""A name and its new file; None: the name is removed."""


class SimDisk:
    """The content of a volume, which outlives the processes of its shard."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self._rng, self._size = rng, size
        self._names: dict[Path, File] = {}
        self._durable: dict[Path, File] = {}
        """Names as of the last sync of their folder."""
        self._pending: list[tuple[Change, ...]] = []
        """Changes of names since then. Changes of one operation are made together."""
        self.holder: Process | None = None
        self.failing = False
        """Whether the next write fails after a part of it was done."""

    def lose_power(self) -> None:
        """The machine goes down. Only the first few of the pending changes of names are on the disk."""
        kept = self._rng.randint(0, len(self._pending))
        for changes in self._pending[:kept]:
            apply(self._durable, changes)
        self._pending.clear()
        for file in {id(file): file for file in self._durable.values()}.values():
            file.lose_power(self._rng)
        self._names = dict(self._durable)

    def snapshot(self) -> dict[Path, bytes]:
        """The current content, which `restore` takes."""
        return {path: bytes(file.data) for path, file in self._names.items()}

    def restore(self, content: dict[Path, bytes]) -> None:
        """Set the volume to this content."""
        self._names = {path: File(bytearray(data), data) for path, data in content.items()}
        self._durable, self._pending = dict(self._names), []

    def wipe(self) -> None:
        """Remove all content."""
        self.restore({})

    def holds(self, content: bytes) -> bool:
        """Whether the bytes are durable in a file with a durable name."""
        return any(content in file.synced for path, file in self._durable.items() if path.suffix == ".wal")

    # for `Mount`

    def change(self, *changes: Change) -> None:
        apply(self._names, changes)
        self._pending.append(changes)

    def sync_names(self) -> None:
        self._durable, self._pending = dict(self._names), []

    @property
    def names(self) -> dict[Path, File]:
        return self._names

    def volume(self) -> Volume:
        return Volume(self._size)


def apply(names: dict[Path, File], changes: Sequence[Change]) -> None:
    for path, file in changes:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


class Mount:
    """The disk for one process; see `interfaces.Disk`. `moment` is called before each change."""

    def __init__(self, disk: SimDisk, process: Process, moment: Callable[[Process], None]) -> None:
        self._disk, self._process, self._moment = disk, process, moment
        self._open: dict[int, File | None] = {}

    def _change(self) -> None:
        if self._process.alive:
            self._moment(self._process)
        if not self._process.alive:
            raise Killed

    def make(self, folder: Path) -> None:
        self._change()

    def files(self, folder: Path, pattern: str) -> list[Path]:
        return sorted(
            path for path in self._disk.names if path.parent == folder and fnmatch(path.name, pattern)
        )

    def open(self, path: Path, *, new: bool = False) -> int:
        self._change()
        if new and path in self._disk.names:
            self._disk.names[path].data.clear()
        elif new:
            self._disk.change((path, File()))
        return self._handle(self._disk.names[path])

    def lock(self, path: Path) -> int:
        holder = self._disk.holder
        if holder is not None and holder.alive and holder is not self._process:
            raise BlockingIOError
        self._disk.holder = self._process
        return self._handle(None)

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        data, target = b"".join(parts), self._file(file)
        if not self._process.alive:
            raise Killed
        try:
            self._change()
        except Killed:
            target.data += data[: self._disk._rng.randint(0, len(data))]
            raise
        if self._disk.failing:
            self._disk.failing = False
            target.data += data[: self._disk._rng.randint(0, len(data))]
            raise OSError(5, "Input/output error")
        target.data += data
        return len(data)

    def size(self, file: int) -> int:
        return len(self._file(file).data)

    def truncate(self, file: int, size: int) -> None:
        self._change()
        del self._file(file).data[size:]

    def sync(self, file: int) -> None:
        self._change()
        target = self._file(file)
        target.synced = bytes(target.data)

    def sync_folder(self, folder: Path) -> None:
        self._change()
        self._disk.sync_names()

    def close(self, file: int) -> None:
        if self._open.pop(file) is None:
            self._disk.holder = None

    @contextmanager
    def read(self, path: Path) -> Iterator[bytes]:
        yield bytes(self._disk.names[path].data)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, or a folder with its files."""
        self._change()
        names = self._disk.names
        moved = [path for path in names if path == old or old in path.parents]
        self._disk.change(
            *((new / path.relative_to(old), names[path]) for path in moved), *((path, None) for path in moved)
        )

    def remove(self, path: Path) -> None:
        self._change()
        self._disk.change((path, None))

    def volume(self, folder: Path) -> Volume:
        return self._disk.volume()

    def _handle(self, file: File | None) -> int:
        handle = max(self._open, default=0) + 1
        self._open[handle] = file
        return handle

    def _file(self, handle: int) -> File:
        found = self._open[handle]
        assert found is not None
        return found
