"""A shard's volume in simulated time. When the power fails, data that was not synced may be lost or torn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

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


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    """Names as of the last sync of this folder."""
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)
    """Changes of names since then; None: the name is removed. Changes of one operation are made together."""

    def change(self, changes: dict[str, File | Folder | None]) -> None:
        apply(self.names, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.names), []

    def lose_power(self, rng: random.Random) -> None:
        """Keep any of the pending changes, in their order."""
        count = rng.randint(0, len(self.pending))  # the one draw of `rng`, whatever is chosen
        for at in sorted(random.Random(count).sample(range(len(self.pending)), count)):
            apply(self.durable, self.pending[at])
        self.names, self.pending = dict(self.durable), []
        for each in self.names.values():
            each.lose_power(rng)

    def files(self, durable: bool = False, path: Path = Path()) -> Iterator[tuple[Path, File]]:
        """All files below the folder; only those that a power loss leaves, if `durable`."""
        for name, each in (self.durable if durable else self.names).items():
            if isinstance(each, File):
                yield path / name, each
            else:
                yield from each.files(durable, path / name)


def apply(names: dict[str, File | Folder], changes: dict[str, File | Folder | None]) -> None:
    for name, each in changes.items():
        if each is None:
            names.pop(name, None)
        else:
            names[name] = each


class SimDisk:
    """The content of a volume, which outlives the processes of its shard. Paths are relative to its mount point."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self._rng, self._size = rng, size
        self._root = Folder()
        self.holder: Process | None = None
        self.failing = False
        """Whether the next write fails after a part of it was done."""
        self.full_until = 0.0
        """Until when each write fails after a part of it was done."""

    def lose_power(self) -> None:
        """The machine goes down. What was not synced may be lost: the bytes of a file, and the names in a folder."""
        self._root.lose_power(self._rng)

    def snapshot(self) -> dict[Path, bytes]:
        """The current content, which `restore` takes."""
        return {path: bytes(file.data) for path, file in self._root.files()}

    def restore(self, content: dict[Path, bytes]) -> None:
        """Set the volume to this content."""
        self._root = Folder()
        for path, data in content.items():
            folder = self.make(path.parent)
            folder.names[path.name] = File(bytearray(data), data)
        sync_all(self._root)

    def wipe(self) -> None:
        """Remove all content."""
        self.restore({})

    def holds(self, content: bytes) -> bool:
        """Whether the bytes are durable in a file with a durable name in folders with durable names."""
        files = self._root.files(durable=True)
        return any(content in file.synced for path, file in files if path.suffix == ".wal")

    # for `Mount`

    def find(self, path: Path) -> File | Folder | None:
        found: File | Folder | None = self._root
        for name in path.parts:
            found = found.names.get(name) if isinstance(found, Folder) else None
        return found

    def folder(self, path: Path) -> Folder:
        found = self.find(path)
        if not isinstance(found, Folder):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return found

    def file(self, path: Path) -> File:
        found = self.find(path)
        if not isinstance(found, File):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return found

    def make(self, path: Path) -> Folder:
        for each in reversed((path, *path.parents)):
            if self.find(each) is None:
                self.folder(each.parent).change({each.name: Folder()})
        return self.folder(path)

    def volume(self) -> int:
        return self._size


def sync_all(folder: Folder) -> None:
    folder.sync()
    for each in folder.names.values():
        if isinstance(each, Folder):
            sync_all(each)


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
        self._disk.make(folder)

    def files(self, folder: Path, pattern: str) -> list[Path]:
        found = self._disk.find(folder)
        names = found.names if isinstance(found, Folder) else {}
        return sorted(folder / name for name in names if fnmatch(name, pattern))

    def open(self, path: Path, *, new: bool = False) -> int:
        self._change()
        if new and self._disk.find(path) is not None:
            self._disk.file(path).data.clear()
        elif new:
            self._disk.folder(path.parent).change({path.name: File()})
        return self._handle(self._disk.file(path))

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
        full = self._process.loop.now < self._disk.full_until
        if self._disk.failing or full:
            self._disk.failing = False
            target.data += data[: self._disk._rng.randint(0, len(data))]
            raise OSError(28, "No space left on device") if full else OSError(5, "Input/output error")
        target.data += data
        return len(data)

    def sync(self, file: int) -> None:
        self._change()
        target = self._file(file)
        target.synced = bytes(target.data)

    def sync_folder(self, folder: Path) -> None:
        self._change()
        self._disk.folder(folder).sync()

    def close(self, file: int) -> None:
        if self._open.pop(file) is None:
            self._disk.holder = None

    @contextmanager
    def read(self, path: Path) -> Iterator[bytes]:
        yield bytes(self._disk.file(path).data)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder within its folder."""
        self._change()
        assert old.parent == new.parent, f"{old} to {new}"
        self._disk.folder(old.parent).change({new.name: self._disk.find(old), old.name: None})

    def remove(self, path: Path) -> None:
        self._change()
        self._disk.folder(path.parent).change({path.name: None})

    def volume(self, folder: Path) -> int:
        return self._disk.volume()

    def _handle(self, file: File | None) -> int:
        handle = max(self._open, default=0) + 1
        self._open[handle] = file
        return handle

    def _file(self, handle: int) -> File:
        found = self._open[handle]
        assert found is not None
        return found
