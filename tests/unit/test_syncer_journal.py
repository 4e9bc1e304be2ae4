"""The journal: what is whole is kept, a torn last write leaves what was there before, other damage is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_disk import Mount, SimDisk

from atoll_runtime.interfaces import Disk
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import Layout, TensorInfo, build_layout
from atoll_runtime.simulate.eventloop import Process, SimLoop
from atoll_runtime.syncer.disk import LOCAL, LocalDisk
from atoll_runtime.syncer.journal import Journal, Resumed, check_room
from atoll_runtime.syncer.records import JournalError
from atoll_runtime.syncer.state import Version


def layout(width: int = 3) -> Layout:
    return build_layout([TensorInfo("w", (2, width), stacked=True, embedding=False)], 2)


def version(number: int, size: int = 3) -> Version:
    values = np.arange(size, dtype=np.float32) + number
    return Version.make(number, values, -values, "bf16")


def machine(clock: int) -> dict[str, dict[str, int]]:
    return {"machine": {"clock": clock}}


def begun(folder: Path, uid: str = "uid") -> Journal:
    journal = Journal(folder, uid, layout(), "lineage")
    journal.begin([version(0), version(0)], machine(0))
    return journal


def written(folder: Path) -> tuple[Path, list[int]]:
    """Writes a journal. Returns the file of its newest state, with two clocks behind it, and where each record ends."""
    newest, ends = folder / "state-0.wal", list[int]()
    journal = begun(folder)
    journal.merge(1, version(1), machine(1))
    journal.merge(0, version(2), machine(2))
    ends.append(newest.stat().st_size)
    for clock in (3, 4):
        journal.advance(clock)
        ends.append(newest.stat().st_size)
    journal.close()
    return newest, ends


def resumed(folder: Path, disk: Disk = LOCAL) -> Resumed:
    """The content of a journal."""
    found = Journal.resume(folder, "uid", layout(), "bf16", disk=disk)
    assert found is not None
    found[0].close()
    return found[1]


def refused(folder: Path) -> str:
    """Why a journal is not used."""
    with pytest.raises(JournalError) as caught:
        Journal.resume(folder, "uid", layout(), "bf16")
    return str(caught.value)


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(name="recorded", scope="module")
def recorded_fixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    return written(tmp_path_factory.mktemp("recorded") / "journal")


@given(damage=st.data())
def test_damage_to_the_last_record_loses_that_record_and_to_an_earlier_one_is_refused(
    recorded: tuple[Path, list[int]], damage: st.DataObject
) -> None:
    newest, ends = recorded
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copytree(newest.parent, Path(folder) / "journal") / newest.name
        content = bytearray(path.read_bytes())
        clocks = damage.draw(st.integers(0, 2), "clocks behind the state")
        struck = damage.draw(st.integers(0, clocks), "record struck, 0 for the state")
        start, stop = ends[struck - 1] if struck else 0, ends[struck]
        del content[ends[clocks] :]
        flips = st.dictionaries(st.integers(start, stop - 1), st.integers(1, 255), min_size=1, max_size=20)
        for offset, mask in damage.draw(flips, "bytes flipped").items():
            content[offset] ^= mask
        if struck == clocks:
            del content[damage.draw(st.integers(start, stop), "length left") :]
        path.write_bytes(content)
        if struck < clocks:
            assert f"{path}: the record at byte {start} is damaged" in refused(path.parent)
            assert path.read_bytes() == content, "what may still be mended is left alone"
            return
        found = resumed(path.parent)
        before = 0 if struck == 0 else 2
        assert found.machine == machine(struck + 1)
        assert [each.version for each in found.fragments] == [before, 1]
        assert found.fragments[0].theta.tobytes() == version(before).theta.tobytes()
        assert found.fragments[1].momentum.tobytes() == version(1).momentum.tobytes()


def test_an_older_state_that_is_damaged_is_not_missed(folder: Path) -> None:
    written(folder)
    (folder / "state-1.wal").write_bytes(b"junk")
    assert resumed(folder).machine == machine(4)


def test_a_journal_that_lost_what_it_had_acknowledged_is_refused_and_says_what_to_do(folder: Path) -> None:
    newest, _ = written(folder)
    merged = folder / "fragment-00000-1.wal"
    merged.write_bytes(merged.read_bytes()[:-1])
    message = refused(folder)
    assert f"{merged}: version 2 is damaged, of which the state tells" in message
    assert f"go on from the newest checkpoint in the bucket, move {folder} away" in message
    for path in (newest, folder / "state-1.wal"):
        path.write_bytes(path.read_bytes()[:30])
    assert f"{folder}: both states are damaged" in refused(folder)
    folder.rename(folder.with_name("away"))
    assert Journal.resume(folder, "uid", layout(), "bf16") is None


def test_a_damaged_length_does_not_ask_for_the_memory_that_it_names(folder: Path) -> None:
    path, ends = written(folder)
    content = bytearray(path.read_bytes()[: ends[0]])
    content[12:20] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(content)
    assert resumed(folder).machine == machine(1)


def mounted(disk: SimDisk) -> Mount:
    """The disk, for another process."""
    return Mount(disk, Process(SimLoop(lambda _: 0.0)), lambda _: None)


def test_what_a_killed_process_had_not_synced_is_durable_once_the_next_one_has_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That process may show it to learners. What a kill at any other write leaves: tests/schedules."""
    folder = Path("layout-1/journal")
    for seed in range(20):
        disk = SimDisk(random.Random(seed), 1 << 40)
        journal = Journal(folder, "uid", layout(), "lineage", disk=mounted(disk))
        journal.begin([version(0), version(0)], machine(0))
        with monkeypatch.context() as killed:
            for name in ("sync", "sync_folder"):
                killed.setattr(Mount, name, lambda *_: None)
            journal.remember(machine(1))
        journal.close()
        for _ in range(2):
            assert resumed(folder, mounted(disk)).machine == machine(1)
            disk.lose_power()


def test_a_second_process_cannot_write_to_the_same_journal(folder: Path) -> None:
    journal = begun(folder)
    held = "journal.lock: another process holds it"
    assert held in refused(folder)
    with pytest.raises(JournalError, match=held):
        begun(folder)
    journal.merge(0, version(7), machine(7))
    journal.close()
    assert resumed(folder).machine == machine(7)
    with pytest.raises(JournalError, match=r"a journal is there: it must be resumed"):
        begun(folder)


@contextlib.contextmanager
def files_no_longer_than(length: int) -> Iterator[None]:
    """Makes writes beyond `length` short, and then fail, as on a full volume."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nothing_follows_a_record_that_the_full_volume_took_in_part(folder: Path) -> None:
    journal = begun(folder)
    journal.merge(0, version(7), machine(7))
    with files_no_longer_than(150), pytest.raises(JournalError, match="File too large"):
        journal.merge(1, version(8), machine(8))
    assert (folder / "state-0.wal").stat().st_size == 150
    for write in (lambda: journal.merge(1, version(8), machine(8)), lambda: journal.advance(9)):
        with pytest.raises(JournalError, match="the journal is closed"):
            write()
    found = Journal.resume(folder, "uid", layout(), "bf16")
    assert found is not None and found[1].machine == machine(7)
    found[0].merge(1, version(8), machine(8))
    found[0].close()


def test_a_number_that_does_not_fit_into_a_record_is_told_and_nothing_is_written(folder: Path) -> None:
    journal = begun(folder)
    journal.remember(machine(1))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(JournalError, match="a record of a State cannot be written: "):
        journal.remember(machine(2**64))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


ELEMENTS = 100_000
"""Elements of each of two fragments. Θ and momentum of both take 1.6 MB, and are stored twice."""
WIDE = layout(width=ELEMENTS)


class Small(LocalDisk):
    """A disk with room for `size` bytes in `folder`."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        used = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        if used + sum(part.nbytes for part in parts) > self._size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file, parts)

    def volume(self, folder: Path) -> int:
        return self._size


@pytest.mark.parametrize(("size", "tape"), [(5_000_000, 0), (6_000_000, 10**9), (8_000_000, 1_000_000)])
def test_a_journal_never_outgrows_its_volume(tmp_path: Path, folder: Path, size: int, tape: int) -> None:
    disk = Small(tmp_path, size)
    (tmp_path / "tape").write_bytes(bytes(min(tape, size // 4)))
    journal = Journal(folder, "uid", WIDE, "lineage", tape, disk)
    journal.begin([version(0, ELEMENTS)] * 2, machine(0))
    for step in range(1, 13):
        journal.merge(step % 2, version(step, ELEMENTS), machine(step))
    journal.close()
    found = Journal.resume(folder, "uid", WIDE, "bf16", tape, disk)
    assert found is not None and found[1].machine == machine(12)
    found[0].close()


def test_a_volume_without_room_for_two_versions_ends_the_syncer_with_both_numbers(folder: Path) -> None:
    size = 4_400_000
    message = (
        f"the journal of {2 * ELEMENTS} parameters needs {4 * 8 * ELEMENTS} bytes, .* volume of {size} has "
        f"{size - size // 4 - size // 16} .* more spec.syncer.storage, or more spec.syncer.shards"
    )
    journal = Journal(folder, "uid", WIDE, "lineage", 10**9, Small(folder, size))
    with pytest.raises(Terminal, match=message) as caught:
        journal.begin([version(0, ELEMENTS)] * 2, machine(0))
    journal.close()
    assert caught.value.reason == "VolumeTooSmall"
    assert list(folder.iterdir()) == []


def test_a_file_system_that_does_not_say_how_large_it_is_bounds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(f_blocks=0, f_bfree=0, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: silent)
    check_room(layout(), LOCAL.volume(tmp_path), 128 << 20)


def test_another_runs_journal_is_set_aside_and_another_layout_is_terminal(folder: Path) -> None:
    begun(folder, "old").close()
    assert Journal.resume(folder, "new", layout(), "bf16") is None
    assert list(folder.iterdir()) == []
    assert (folder.with_name("journal-of-old") / "state-0.wal").exists()
    begun(folder, "new").close()
    with pytest.raises(Terminal, match=r"model and outer.fragments") as caught:
        Journal.resume(folder, "new", layout(width=4), "bf16")
    assert caught.value.reason == "LayoutChanged"


def test_what_earlier_layouts_left_on_the_volume_makes_room_and_all_else_stays(tmp_path: Path) -> None:
    for name in ("layout-0/journal", "layout-1/tape", "layout-3/journal", "compiled"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("of some bytes")
    begun(tmp_path / "compiled/journal").close()
    assert len(list(tmp_path.glob("layout-*"))) == 3, (
        "a folder that is no layout's has no neighbours to remove"
    )
    disk, layouts = Small(tmp_path, 3_600_000), {1: WIDE, 2: layout(width=ELEMENTS // 2)}
    for number, mine in layouts.items():
        folder, size = tmp_path / f"layout-{number}/journal", mine.fragments[0].size
        journal = Journal(folder, "uid", mine, "lineage", 0, disk)
        journal.begin([version(0, size)] * 2, machine(0))
        for p in (0, 1):
            journal.merge(p, version(1, size), machine(p))
        journal.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["compiled", f"layout-{number}"]
    found = Journal.resume(folder, "uid", mine, "bf16", 0, disk)
    assert found is not None and found[1].machine == machine(1)
    found[0].close()
