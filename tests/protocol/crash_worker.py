"""Kills a journal's writer at every single change that it makes to its volume, run by test_syncer_crashes.

Argument: an empty folder. A child of this process plays a fixed script of merges on a real `Journal` and tells
through a pipe what it changed on the volume and what learners have seen; at the chosen change it kills itself
with SIGKILL. The parent then looks at what is left on the volume, or at what a power loss would have left of
it, resumes there and plays the rest of the script. Figures as JSON on stdout; an AssertionError otherwise.
"""

import collections
import contextlib
import copy
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import google_crc32c
import msgspec
import numpy as np

from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.syncer import journal as journals
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.state import Version

CODEC, UID, LINEAGE, SEED = "bf16", "uid", "lineage", 20260
LAYOUT = build_layout(
    [TensorInfo(name, (size,), False, False) for name, size in (("a", 5), ("b", 4), ("c", 3))], 3
)
SCRIPT = ["begin", *"mmrmm mmrm mm mmrm m".replace(" ", "s")]
"""Each step after `begin`: a (m)erge, (r)emember, or (s)topped and started again, which remembers too."""
SEGMENT = 1100
"""Bytes of a segment: some five records behind a snapshot."""
DEADLINE = 100.0
"""Seconds for a child to end."""


# The script, and the state after each of its steps.


@dataclass(frozen=True)
class Step:
    """The one right state after a step: a merge that is lost, or applied twice, makes another one."""

    number: int
    kind: str
    merged: int
    fragments: tuple[Version, ...]

    @property
    def machine(self):
        return {"step": self.number, "versions": [each.version for each in self.fragments]}


def script():
    """Each merge depends on all merges of its fragment before it."""
    random_numbers = np.random.default_rng(SEED)
    sizes = [fragment.size for fragment in LAYOUT.fragments]
    fragments = [Version.make(0, *random_numbers.random((2, size), np.float32), CODEC) for size in sizes]
    steps, turn = [Step(0, "begin", -1, tuple(fragments))], 0
    for number, kind in enumerate(SCRIPT[1:], 1):
        if kind == "m":
            old = fragments[turn % 3]
            momentum = old.momentum * np.float32(0.9) + np.float32(number)
            theta = old.theta - np.float32(0.7) * momentum
            fragments[turn % 3] = Version.make(number, theta, momentum, CODEC)
        steps.append(Step(number, kind, turn % 3 if kind == "m" else -1, tuple(fragments)))
        turn += kind == "m"
    return steps


STEPS = script()


def mark(version):
    """What a learner can tell of a fragment that it has received."""
    return [version.version, google_crc32c.value(version.theta.tobytes())]


def resume(volume):
    return Journal.resume(volume / "journal", UID, LAYOUT, CODEC)


def play(volume, show):
    """From where the journal is to the end of the script. `show` tells learners of a durable step."""
    found = resume(volume)
    if found is None:
        journal, at = Journal(volume / "journal", UID, LAYOUT, LINEAGE), 0
        journal.begin(STEPS[0].fragments, STEPS[0].machine)
    else:
        journal, at = found[0], found[1].machine["step"]
    show(at, {p: mark(each) for p, each in enumerate(STEPS[at].fragments)})
    for step in STEPS[at + 1 :]:
        if step.kind == "m":
            journal.merge(step.merged, step.fragments[step.merged], step.machine)
            show(step.number, {step.merged: mark(step.fragments[step.merged])})
            continue
        if step.kind == "s":
            journal.close()
            journal, _ = resume(volume)
        journal.remember(step.machine)
        show(step.number, {})
    journal.close()


# The child: real changes to a real volume, and a real SIGKILL.


class Instrument:
    """Numbers every change that this process makes to `volume`, tells of each, and kills it at one of them."""

    def __init__(self, volume: Path, pipe: Connection, point: int, how: str) -> None:
        self.volume, self.pipe, self.point, self.how = volume, pipe, point, how
        self.random = random.Random(f"{SEED} {point} {how}")
        self.count = 0
        self.real = {
            name: getattr(os, name) for name in ("open", "writev", "ftruncate", "rename", "unlink", "mkdir")
        }
        for name in (*self.real, "fsync"):
            setattr(os, name, getattr(self, name))

    def tell(self, *message) -> None:
        self.pipe.send_bytes(msgspec.msgpack.encode(message))

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def name(self, path) -> str:
        """Relative to the volume; of an open file, as it is called now."""
        place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
        return os.path.relpath(place, self.volume)

    def change(self, do, *message):
        here = self.count == self.point
        self.count += 1
        if here and self.how == "before":
            self.die()
        result = do()
        self.tell(*message)
        if here:
            self.die()
        return result

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        def do():
            return self.real["open"](path, flags, mode, dir_fd=dir_fd)

        there = os.path.exists(path)
        if flags & os.O_CREAT and not there:
            return self.change(do, "create", self.name(path))
        if flags & os.O_TRUNC and there:
            return self.change(do, "truncate", self.name(path), 0)
        return do()

    def writev(self, file, buffers):
        data = b"".join(buffers)
        if self.count == self.point and self.how == "torn":
            data = data[: self.random.randrange(1, len(data))]
        return self.change(lambda: self.real["writev"](file, [data]), "write", self.name(file), data)

    def fsync(self, file):
        # What the page cache holds outlives a SIGKILL, synced or not; power loss is played by `Disk`.
        return self.change(lambda: None, "sync", self.name(file))

    def ftruncate(self, file, length):
        return self.change(lambda: self.real["ftruncate"](file, length), "truncate", self.name(file), length)

    def rename(self, old, new):
        return self.change(lambda: self.real["rename"](old, new), "rename", self.name(old), self.name(new))

    def unlink(self, path):
        return self.change(lambda: self.real["unlink"](path), "unlink", self.name(path))

    def mkdir(self, path, mode=0o777):
        def do():
            return self.real["mkdir"](path, mode)

        return do() if os.path.exists(path) else self.change(do, "mkdir", self.name(path))


# The parent: what is left.


@dataclass
class File:
    data: bytes = b""
    synced: bytes = b""

    def left(self, chance):
        """What a power loss leaves: of what was not synced nothing or, by chance, a part with holes."""
        if chance is None or chance.random() < 0.3:
            return self.synced
        common = min(len(self.data), len(self.synced))  # it is only ever appended to and cut off
        rest = bytearray(self.data[common:][: chance.randint(0, len(self.data) - common)])
        if rest and chance.random() < 0.5:
            start = chance.randrange(len(rest))
            stop = chance.randint(start, len(rest))
            rest[start:stop] = bytes(stop - start)
        return self.data[:common] + bytes(rest)


@dataclass
class Folder:
    entries: dict = field(default_factory=dict)
    synced: dict = field(default_factory=dict)
    pending: list = field(default_factory=list)

    def put(self, change):
        """`change`: names and what they stand for from now on, None for nothing."""
        self.pending.append(change)
        self.entries = apply(self.entries, change)

    def left(self, chance):
        """Of the changes that were not synced nothing or, by chance, any of them."""
        entries = self.synced
        for change in self.pending if chance is not None else ():
            if chance.random() < 0.5:
                entries = apply(entries, change)
        return entries


def apply(entries, change):
    return {name: node for name, node in {**entries, **change}.items() if node is not None}


class Disk:
    """What stands on a volume, and what of it a power loss leaves: no more than POSIX promises."""

    def __init__(self, tree):
        self.root = Folder()
        for name, data in tree.items():
            folder, last = self.parent(name)
            folder.put({last: Folder() if data is None else File(data, data)})
        self.settle(self.root)

    def settle(self, folder):
        folder.synced, folder.pending = folder.entries, []
        for each in folder.entries.values():
            if isinstance(each, Folder):
                self.settle(each)

    def parent(self, name):
        *folders, last = name.split("/")
        folder = self.root
        for each in folders:
            folder = folder.entries[each]
        return folder, last

    def change(self, kind, name, *more):
        """One change, as the child told it."""
        if kind == "sync" and name == ".":
            self.root.synced, self.root.pending = self.root.entries, []
            return
        folder, last = self.parent(name)
        node = folder.entries.get(last)
        match kind, more:
            case "create", ():
                folder.put({last: File()})
            case "mkdir", ():
                folder.put({last: Folder()})
            case "unlink", ():
                folder.put({last: None})
            case "rename", (new,):
                assert self.parent(new)[0] is folder, "a rename from one folder to another"
                folder.put({last: None, self.parent(new)[1]: node})
            case "write", (data,):
                node.data += data
            case "truncate", (length,):
                node.data = node.data[:length]
            case "sync", () if isinstance(node, File):
                node.synced = node.data
            case "sync", ():
                node.synced, node.pending = node.entries, []
            case _:
                raise AssertionError(f"the child told of {kind} {name}")

    def tree(self):
        """Path → content, None for a folder: as the processes see it."""
        return walk(self.root, lambda node: node.entries if isinstance(node, Folder) else node.data)

    def after_power_loss(self, chance=None):
        """The same: what is synced and, with `chance`, some of what is not."""
        return walk(self.root, lambda node: node.left(chance))


def walk(folder, content, prefix=""):
    tree = {}
    for name, node in sorted(content(folder).items()):
        if isinstance(node, Folder):
            tree |= {prefix + name: None, **walk(node, content, f"{prefix}{name}/")}
        else:
            tree[prefix + name] = content(node)
    return tree


def found_on(volume):
    """The real volume as such a tree."""
    return {
        str(path.relative_to(volume)): None if path.is_dir() else path.read_bytes()
        for path in sorted(volume.rglob("*"))
    }


@contextlib.contextmanager
def volume_with(folder, tree):
    volume = folder / "volume"
    volume.mkdir()
    for name, data in tree.items():
        (volume / name).mkdir() if data is None else (volume / name).write_bytes(data)
    yield volume
    shutil.rmtree(volume)


@dataclass
class Seen:
    """What learners have seen, over all lives of the syncer."""

    step: int = -1
    marks: dict = field(default_factory=dict)


@dataclass
class Life:
    """One child, from its start to its kill."""

    points: list
    """Kind of each change that it made."""
    seen: Seen
    disk: Disk
    killed: bool
    shown: int = 0
    """Times that it told learners of something."""


def live(folder, disk, seen, point, how):
    """Plays the script in a child on a volume that holds what `disk` does, killed at its `point`-th change."""
    with volume_with(folder, disk.tree()) as volume:
        reader, writer = Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                instrument = Instrument(volume, writer, point, how)
                play(volume, lambda step, marks: instrument.tell("seen", step, marks))
                status = 0
            except BaseException as error:
                instrument.tell("failed", repr(error))
            finally:
                os._exit(status)
        writer.close()
        life = Life([], Seen(seen.step, dict(seen.marks)), copy.deepcopy(disk), False)
        deadline = time.monotonic() + DEADLINE
        with reader, contextlib.suppress(EOFError):
            while True:
                if not reader.poll(max(0.0, deadline - time.monotonic())):
                    os.kill(child, signal.SIGKILL)
                    raise AssertionError(f"change {point}, {how}: the child did not end")
                kind, *message = msgspec.msgpack.decode(reader.recv_bytes(), strict=False)
                assert kind != "failed", f"change {point}, {how}: {message}"
                if kind == "seen":
                    life.shown += 1
                    life.seen.step = message[0]
                    life.seen.marks |= message[1]
                else:
                    life.points.append(kind)
                    life.disk.change(kind, *message)
        _, status = os.waitpid(child, 0)
        life.killed = os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        assert life.killed or status == 0, f"change {point}, {how}: status {status}"
        assert found_on(volume) == life.disk.tree(), "the child changed more on its volume than was numbered"
        return life


def recovered(folder, tree, seen, aside, what):
    """No merge that was seen is lost, none is applied twice, and the rest of the script goes on from there."""
    with volume_with(folder, tree) as volume:
        found = resume(volume)
        at = -1
        if found is not None:
            journal, replay = found
            journal.close()
            assert len(list((volume / "journal").iterdir())) == 1, (
                f"{what}: more than the newest segment is left"
            )
            at = replay.machine["step"]
            same(replay, STEPS[at], what)
            for p, (version, crc) in seen.marks.items():
                now = replay.fragments[p]
                assert now.version > version or mark(now) == [version, crc], f"{what}: fragment {p}"
        assert at >= seen.step, f"{what}: learners have seen step {seen.step}, {at} is left"
        play(volume, lambda step, marks: None)
        journal, replay = resume(volume)
        journal.close()
        same(replay, STEPS[-1], what)
        rest = {name: data for name, data in found_on(volume).items() if not name.startswith("journal/")}
        assert rest == {"journal": None, "journal.lock": b"", **aside}, f"{what}: {sorted(rest)}"


def same(replay, step, what):
    """Bit for bit."""
    assert replay.lineage == LINEAGE, what
    assert replay.machine == step.machine, f"{what}: {replay.machine} is not {step.machine}"
    for ours, right in zip(replay.fragments, step.fragments, strict=True):
        assert mark(ours) == mark(right), f"{what}: step {step.number}, version {ours.version}"
        assert ours.momentum.tobytes() == right.momentum.tobytes(), f"{what}: step {step.number}"


def kills(folder, first, points):
    """Every change, before it and after it; within it where it is a write, at a random byte."""
    for point, kind in enumerate(points):
        for how in ("before", "torn", "after") if kind == "write" else ("before", "after"):
            what = f"change {point} ({kind}), killed {how}"
            life = live(folder, first, Seen(), point, how)
            assert life.killed, what
            # What it left without a sync is what a second life must make durable before it tells of it.
            yield what, how in ("torn", "after") and kind != "sync", life


def second_kills(folder, life, what):
    """Every change from there until learners are told of what was found, and the moment after that."""
    again, point = None, 0
    while again is None or not again.shown:
        again = live(folder, life.disk, life.seen, point, "before")
        yield f"{what}, again before change {point} of its second life", again
        point += 1


def main():
    assert "jax" not in sys.modules, "it forks: the journal must not import JAX"
    folder = Path(sys.argv[1])
    logging.disable(logging.WARNING)
    journals.LEAST_GROWTH = SEGMENT
    os.fsync = lambda file: None  # it cannot be seen without a power loss, which `Disk` plays
    another = Journal(folder / "journal", "another", LAYOUT, "another")
    another.begin(STEPS[0].fragments, STEPS[0].machine)
    another.close()
    content = (folder / "journal" / "segment-00000001.wal").read_bytes()
    shutil.rmtree(folder / "journal")
    first = Disk({"journal": None, "journal/segment-00000001.wal": content})
    (folder / "journal.lock").unlink()
    aside = {"journal-of-another": None, "journal-of-another/segment-00000001.wal": content}

    whole = live(folder, first, Seen(), -1, "")
    assert not whole.killed and whole.seen.step == STEPS[-1].number
    count, done = collections.Counter(), set()

    def check(kind, tree, seen, what):
        count[kind] += 1
        state = repr((tree, seen))
        if state not in done:  # many kills leave the same
            recovered(folder, tree, seen, aside, what)
            done.add(state)

    for what, unsettled, life in kills(folder, first, whole.points):
        chance = random.Random(f"{SEED} {what}")
        check("kills", life.disk.tree(), life.seen, what)
        check("power_losses", life.disk.after_power_loss(), life.seen, f"{what}, power lost")
        check("power_losses", life.disk.after_power_loss(chance), life.seen, f"{what}, power lost by chance")
        if unsettled:
            for more, again in second_kills(folder, life, what):
                check("second_kills", again.disk.tree(), again.seen, more)
                check("power_losses", again.disk.after_power_loss(), again.seen, f"{more}, power lost")
    print(json.dumps({"points": collections.Counter(whole.points), **count, "states": len(done)}))


if __name__ == "__main__":
    main()
