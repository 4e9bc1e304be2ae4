"""The journal's writer is killed at every single change that it makes to its volume, and power is lost there.

A fixed script of merges is played on a real `Journal`, which runs on a volume in memory. Each time that volume ends the
writer at another change. What is left, or what a loss of power would have left of it, is resumed, and the rest of the
script is played there.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll_runtime import interfaces
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.syncer import journal as journals
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.records import Replay
from atoll_runtime.syncer.state import Version

CODEC, UID, LINEAGE, SEED = "bf16", "uid", "lineage", 20260
LAYOUT = build_layout(
    [TensorInfo(name, (size,), False, False) for name, size in (("a", 5), ("b", 4), ("c", 3))], 3
)
SCRIPT = "mmrmmsmmrmsmmsmmrmsm"
"""Steps after the first one: a (m)erge, (r)emember, or (s)topped and started again, which remembers too."""
Tree = dict[str, bytes | None]
"""What is on a volume: path → content, None for a folder."""
Seen = dict[int, Version]
"""What learners have received, by fragment."""


@dataclass(frozen=True)
class Step:
    """The one right state after a step: a merge that is lost, or applied twice, makes another one."""

    number: int
    kind: str
    merged: int
    fragments: tuple[Version, ...]

    @property
    def machine(self) -> dict[str, Any]:
        return {"step": self.number, "versions": [each.version for each in self.fragments]}


def script() -> list[Step]:
    """Each merge depends on all merges of its fragment before it."""
    numbers, turn = np.random.default_rng(SEED), 0
    fragments = [
        Version.make(0, *numbers.random((2, each.size), np.float32), CODEC) for each in LAYOUT.fragments
    ]
    steps = [Step(0, "begin", -1, tuple(fragments))]
    for number, kind in enumerate(SCRIPT, 1):
        if kind == "m":
            old = fragments[turn % 3]
            momentum = old.momentum * np.float32(0.9) + np.float32(number)
            fragments[turn % 3] = Version.make(
                number, old.theta - np.float32(0.7) * momentum, momentum, CODEC
            )
        steps.append(Step(number, kind, turn % 3, tuple(fragments)))
        turn += kind == "m"
    return steps


STEPS = script()


class Killed(BaseException):
    """The process is gone."""


@dataclass
class File:
    data: bytes = b""
    synced: bytes = b""

    def left(self, chance: random.Random | None) -> bytes:
        """What a power loss leaves: of what was not synced nothing or, by chance, a part with holes."""
        if chance is None or chance.random() < 0.3:
            return self.synced
        common = min(len(self.data), len(self.synced))
        if self.data[:common] != self.synced[:common]:  # it was emptied and written anew
            return self.data[: chance.randint(0, len(self.data))]
        rest = bytearray(self.data[common:][: chance.randint(0, len(self.data) - common)])
        if rest and chance.random() < 0.5:
            start = chance.randrange(len(rest))
            stop = chance.randint(start, len(rest))
            rest[start:stop] = bytes(stop - start)
        return self.data[:common] + bytes(rest)


Entries = dict[str, Any]
"""Name → File or Folder."""


@dataclass
class Folder:
    entries: Entries = field(default_factory=dict)
    synced: Entries = field(default_factory=dict)
    pending: list[Mapping[str, Any]] = field(default_factory=list)

    def put(self, change: Mapping[str, Any]) -> None:
        """Names and what they stand for from now on, None for nothing."""
        self.pending.append(change)
        self.entries = apply(self.entries, change)

    def sync(self) -> None:
        self.synced, self.pending = self.entries, []

    def left(self, chance: random.Random | None) -> Entries:
        """Of the changes that were not synced nothing or, by chance, any of them."""
        entries = self.synced
        for change in self.pending if chance is not None else ():
            if chance.random() < 0.5:
                entries = apply(entries, change)
        return entries


def apply(entries: Entries, change: Mapping[str, Any]) -> Entries:
    return {name: node for name, node in {**entries, **change}.items() if node is not None}


class Volume:
    """See `interfaces.Disk`. Of what is not synced, a power loss keeps no more than POSIX promises."""

    def __init__(self, tree: Tree) -> None:
        self.root, self.kinds, self.chance = Folder(), list[str](), random.Random()
        self.point = -1
        """The process is killed at the change of that number; where it is a write, within it."""
        self._open: list[File] = []
        for name, data in tree.items():
            folder = self._folder(Path(name).parent)
            folder.put({Path(name).name: Folder() if data is None else File(data, data)})
            folder.sync()

    def tree(self) -> Tree:
        """As the processes see it."""
        return walk(self.root, lambda node: node.entries if isinstance(node, Folder) else node.data)

    def after_power_loss(self, chance: random.Random | None = None) -> Tree:
        """What is synced and, with `chance`, some of what is not."""
        return walk(self.root, lambda node: node.left(chance))

    def _folder(self, path: Path) -> Folder:
        folder = self.root
        for name in path.parts:
            folder = folder.entries[name]
        return folder

    def _node(self, path: Path) -> Any:
        return self._folder(path.parent).entries.get(path.name)

    def _change(self, kind: str) -> None:
        if len(self.kinds) == self.point:
            raise Killed
        self.kinds.append(kind)

    def make(self, folder: Path) -> None:
        if self._node(folder) is None:
            self._change("mkdir")
            self._folder(folder.parent).put({folder.name: Folder()})

    def files(self, folder: Path, pattern: str) -> list[Path]:
        return [folder / name for name in sorted(self._folder(folder).entries) if fnmatch(name, pattern)]

    def open(self, path: Path, *, new: bool = False) -> int:
        if new and self._node(path) is None:
            self._change("create")
            self._folder(path.parent).put({path.name: File()})
        elif new:
            self._change("truncate")
            self._node(path).data = b""
        self._open.append(self._node(path))
        return len(self._open) - 1

    def lock(self, path: Path) -> int:
        return self.open(path, new=self._node(path) is None)

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        data = b"".join(parts)
        if len(self.kinds) == self.point:
            self._open[file].data += data[: self.chance.randint(0, len(data))]
        self._change("write")
        self._open[file].data += data
        return len(data)

    def size(self, file: int) -> int:
        return len(self._open[file].data)

    def truncate(self, file: int, size: int) -> None:
        self._change("truncate")
        self._open[file].data = self._open[file].data[:size]

    def sync(self, file: int) -> None:
        self._change("sync")
        self._open[file].synced = self._open[file].data

    def sync_folder(self, folder: Path) -> None:
        self._change("sync")
        self._folder(folder).sync()

    def close(self, file: int) -> None:
        pass

    @contextlib.contextmanager
    def read(self, path: Path) -> Iterator[bytes]:
        yield self._node(path).data

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        self._change("rename")
        self._folder(old.parent).put({old.name: None, new.name: self._node(old)})

    def remove(self, path: Path) -> None:
        if self._node(path) is not None:
            self._change("unlink")
            self._folder(path.parent).put({path.name: None})

    def volume(self, folder: Path) -> interfaces.Volume:
        return interfaces.Volume(1 << 40, 1 << 40)


def walk(folder: Folder, content: Any, prefix: str = "") -> Tree:
    tree: Tree = {}
    for name, node in sorted(content(folder).items()):
        if isinstance(node, Folder):
            tree |= {prefix + name: None, **walk(node, content, f"{prefix}{name}/")}
        else:
            tree[prefix + name] = content(node)
    return tree


def resume(volume: Volume) -> tuple[Journal, Replay] | None:
    return Journal.resume(Path("journal"), UID, LAYOUT, CODEC, disk=volume)


def play(volume: Volume, seen: Seen | None = None) -> Iterator[int]:
    """From where the journal is to the end of the script. Gives each step that learners are told of, as durable."""
    seen = {} if seen is None else seen
    found = resume(volume)
    if found is None:
        journal, at = Journal(Path("journal"), UID, LAYOUT, LINEAGE, disk=volume), 0
        journal.begin(STEPS[0].fragments, STEPS[0].machine)
    else:
        journal, at = found[0], found[1].machine["step"]
    seen |= dict(enumerate(STEPS[at].fragments))
    yield at
    for step in STEPS[at + 1 :]:
        if step.kind == "m":
            journal.merge(step.merged, step.fragments[step.merged], step.machine)
            seen[step.merged] = step.fragments[step.merged]
        else:
            if step.kind == "s":
                journal.close()
                again = resume(volume)
                assert again is not None
                journal, _ = again
            journal.remember(step.machine)
        yield step.number
    journal.close()


@dataclass
class Life:
    """One process, from its start to its kill, and what learners have seen in all lives so far."""

    volume: Volume
    seen: Seen = field(default_factory=dict)
    step: int = -1
    shown: int = 0
    killed: bool = False


def live(volume: Volume, point: int, before: Life | None = None) -> Life:
    """Plays the script from what is on the volume; killed at its `point`-th change."""
    volume = copy.deepcopy(volume)
    volume.point, volume.kinds, volume.chance = point, [], random.Random(f"{SEED} {point}")
    life = Life(volume) if before is None else Life(volume, dict(before.seen), before.step)
    try:
        for step in play(volume, life.seen):
            life.step = step
            life.shown += 1
    except Killed:
        life.killed = True
    return life


def same(replay: Replay, step: Step) -> None:
    """Bit for bit."""
    assert replay.lineage == LINEAGE and replay.machine == step.machine
    for ours, right in zip(replay.fragments, step.fragments, strict=True):
        assert (ours.version, ours.theta.tobytes(), ours.momentum.tobytes()) == (
            right.version,
            right.theta.tobytes(),
            right.momentum.tobytes(),
        )


def recovers(tree: Tree, life: Life, aside: Tree) -> None:
    """No merge that was seen is lost, none is applied twice, and the rest of the script goes on from there."""
    volume, at = Volume(tree), -1
    found = resume(volume)
    if found is not None:
        journal, replay = found
        journal.close()
        left = [name for name in volume._folder(Path("journal")).entries if name.startswith("log-")]
        assert len(left) == 1, "more than the newest log is left"
        at = replay.machine["step"]
        same(replay, STEPS[at])
        for p, version in life.seen.items():
            now = replay.fragments[p]
            assert now.version > version.version or now.theta.tobytes() == version.theta.tobytes()
    assert at >= life.step, f"learners have seen step {life.step}, {at} is left"
    list(play(volume))
    found = resume(volume)
    assert found is not None
    same(found[1], STEPS[-1])
    rest = {name: data for name, data in volume.tree().items() if not name.startswith("journal/")}
    assert rest == {"journal": None, "journal.lock": b"", **aside}


def test_a_syncer_killed_at_any_write_point_loses_no_merge_that_was_seen_and_applies_none_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(journals, "LOG", 0)
    another = Volume({})
    old = Journal(Path("journal"), "another", LAYOUT, "another", disk=another)
    old.begin(STEPS[0].fragments, STEPS[0].machine)
    first: Tree = {name: data for name, data in another.tree().items() if name != "journal.lock"}
    aside: Tree = {name.replace("journal", "journal-of-another", 1): data for name, data in first.items()}
    whole, count, done = live(Volume(first), -1), Counter[str](), set[str]()
    assert not whole.killed and whole.step == STEPS[-1].number

    def check(kind: str, tree: Tree, life: Life) -> None:
        count[kind] += 1
        state = repr((tree, life.step))
        if state not in done:  # many kills leave the same
            done.add(state)
            recovers(tree, life, aside)

    for point in range(len(whole.volume.kinds)):
        life, chance = live(Volume(first), point), random.Random(f"{SEED} loss {point}")
        assert life.killed
        check("kills", life.volume.tree(), life)
        check("power losses", life.volume.after_power_loss(), life)
        for _ in range(2):
            check("power losses", life.volume.after_power_loss(chance), life)
        # What it left without a sync is what a second life must make durable before it tells of it.
        again, second = None, 0
        while again is None or (again.killed and not again.shown):
            again = live(life.volume, second, life)
            check("second kills", again.volume.tree(), again)
            check("power losses", again.volume.after_power_loss(), again)
            second += 1
    kinds = Counter(whole.volume.kinds)
    assert set(kinds) == {"create", "write", "sync", "rename", "unlink", "mkdir", "truncate"}
    assert kinds["rename"] >= 4, "another run's journal set aside, a first log, two that replaced it at least"
    assert count["kills"] == len(whole.volume.kinds) > 80
    assert count["second kills"] > 3 * count["kills"] and count["power losses"] > 4 * count["kills"]
