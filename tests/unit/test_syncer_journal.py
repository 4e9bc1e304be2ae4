"""The journal: complete records are kept, a damaged last record is cut off, and other damage is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.interfaces import Volume
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.fragments import Layout, TensorInfo, build_layout
from atoll_runtime.syncer import journal as journals
from atoll_runtime.syncer.disk import LOCAL, LocalDisk
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.records import JournalError, Replay
from atoll_runtime.syncer.state import Version


class Recorded(NamedTuple):
    """A journal as it was written: its log, and the files of fragments."""

    content: bytes
    ends: list[int]
    """Offset after the log's first records, and after each later one."""
    fragments: dict[str, bytes]


def layout(width: int = 3) -> Layout:
    return build_layout([TensorInfo("w", (2, width), stacked=True, embedding=False)], 2)


def version(number: int, size: int = 3) -> Version:
    values = np.arange(size, dtype=np.float32) + number
    return Version.make(number, values, -values, "bf16")


def begun(folder: Path, uid: str = "uid") -> Journal:
    journal = Journal(folder, uid, layout(), "lineage")
    journal.begin([version(0), version(0)], {"t": 0})
    return journal


def resumed(folder: Path) -> Replay:
    """The content of a journal."""
    found = Journal.resume(folder, "uid", layout(), "bf16")
    assert found is not None
    found[0].close()
    return found[1]


def refused(folder: Path) -> str:
    """Why a journal is not used."""
    with pytest.raises(JournalError) as caught:
        Journal.resume(folder, "uid", layout(), "bf16")
    return str(caught.value)


def log(folder: Path) -> Path:
    (found,) = folder.glob("log-*.wal")
    return found


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(name="recorded", scope="module")
def recorded_fixture(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded") / "journal"
    journal = begun(folder)
    ends = [log(folder).stat().st_size]
    for step in range(1, 5):
        if step == 3:
            journal.remember({"t": step})
        else:
            journal.merge(step % 2, version(step), {"t": step})
        ends.append(log(folder).stat().st_size)
    journal.close()
    files = {path.name: path.read_bytes() for path in folder.glob("fragment-*.wal")}
    return Recorded(log(folder).read_bytes(), ends, files)


@given(damage=st.data())
def test_damage_to_the_last_record_is_cut_off_and_to_an_earlier_one_is_refused(
    recorded: Recorded, damage: st.DataObject
) -> None:
    ends, content = recorded.ends, bytearray(recorded.content)
    last = len(ends) - 1
    struck = damage.draw(st.integers(0, last), "record struck, 0 for the first ones")
    start, stop = ends[struck - 1] if struck else 0, ends[struck]
    masks = st.integers(1, 255)
    flips = st.dictionaries(st.integers(start, stop - 1), masks, min_size=1, max_size=20)
    for offset, mask in damage.draw(flips, "bytes flipped").items():
        content[offset] ^= mask
    if struck == last:
        del content[damage.draw(st.integers(start, stop), "length left") :]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "journal"
        directory.mkdir()
        for name, data in recorded.fragments.items():
            (directory / name).write_bytes(data)
        path = directory / "log-00000001.wal"
        path.write_bytes(content)
        if struck == last:
            found = resumed(directory)
            assert found.machine == {"t": last - 1}
            assert [each.version for each in found.fragments] == [2, 1]
            assert found.fragments[0].theta.tobytes() == version(2).theta.tobytes()
            assert found.fragments[1].momentum.tobytes() == version(1).momentum.tobytes()
            assert path.read_bytes() == recorded.content[:start]
        else:
            assert "damaged" in refused(directory)
            assert path.read_bytes() == content, "what may still be mended is left alone"


def test_a_refused_journal_says_what_would_be_lost_and_what_to_do(folder: Path) -> None:
    journal = begun(folder)
    good = log(folder).stat().st_size
    for step in (7, 8, 9):
        journal.merge(step % 2, version(step), {"t": step})
    journal.close()
    path = log(folder)
    content = bytearray(path.read_bytes())
    content[good + 60] ^= 1
    path.write_bytes(content)
    message = refused(folder)
    assert f"{path}: the record at byte {good} is damaged, and 2 whole ones stand behind it" in message
    assert "the last: Merge of fragment 1, version 9" in message
    assert f"go on from the newest checkpoint in the bucket, move {folder} away" in message
    folder.rename(folder.with_name("away"))
    assert Journal.resume(folder, "uid", layout(), "bf16") is None


def test_a_damaged_beginning_or_fragment_is_refused_and_no_older_state_taken_for_the_newest(
    folder: Path,
) -> None:
    journal = begun(folder)
    journal.merge(0, version(7), {"t": 7})
    journal.close()
    newer = folder / "log-00000002.wal"
    newer.write_bytes(log(folder).read_bytes()[:30])
    assert f"{newer}: the records at its start are damaged" in refused(folder)
    newer.unlink()
    newest = folder / "fragment-00000-1.wal"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert f"{newest}: version 7 is damaged, of which the log tells" in refused(folder)


def test_a_damaged_length_does_not_ask_for_the_memory_that_it_names(folder: Path) -> None:
    journal = begun(folder)
    good = log(folder).stat().st_size
    journal.merge(0, version(7), {"t": 7})
    journal.close()
    content = bytearray(log(folder).read_bytes())
    content[good + 12 : good + 20] = (1 << 62).to_bytes(8, "little")
    log(folder).write_bytes(content)
    assert resumed(folder).machine == {"t": 0}


def test_a_second_process_cannot_write_to_the_same_journal(folder: Path) -> None:
    journal = begun(folder)
    held = "journal.lock: another process holds it"
    assert held in refused(folder)
    with pytest.raises(JournalError, match=held):
        begun(folder)
    journal.merge(0, version(7), {"t": 7})
    journal.close()
    assert resumed(folder).machine == {"t": 7}
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
    journal.merge(0, version(7), {"t": 7})
    good = log(folder).stat().st_size
    with files_no_longer_than(good + 50), pytest.raises(JournalError, match="File too large"):
        journal.merge(1, version(8), {"t": 8})
    assert log(folder).stat().st_size == good + 50
    with pytest.raises(JournalError, match="the journal is closed"):
        journal.merge(1, version(8), {"t": 8})
    journal.close()
    found = Journal.resume(folder, "uid", layout(), "bf16")
    assert found is not None and found[1].machine == {"t": 7}
    assert log(folder).stat().st_size == good
    found[0].merge(1, version(8), {"t": 8})
    found[0].close()


def test_a_number_that_does_not_fit_into_a_record_is_told_and_nothing_is_written(folder: Path) -> None:
    journal = begun(folder)
    good = log(folder).stat().st_size
    with pytest.raises(JournalError, match="a record of a State cannot be written: "):
        journal.remember({"tokens": 2**64})
    assert log(folder).stat().st_size == good
    assert resumed(folder).machine == {"t": 0}


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

    def volume(self, folder: Path) -> Volume:
        return Volume(self._size)


@pytest.mark.parametrize(("size", "tape"), [(5_000_000, 0), (6_000_000, 10**9), (8_000_000, 1_000_000)])
def test_a_journal_never_outgrows_its_volume(tmp_path: Path, folder: Path, size: int, tape: int) -> None:
    disk = Small(tmp_path, size)
    (tmp_path / "tape").write_bytes(bytes(min(tape, size // 4)))
    journal = Journal(folder, "uid", WIDE, "lineage", tape, disk)
    journal.begin([version(0, ELEMENTS)] * 2, {"t": 0})
    for step in range(1, 13):
        journal.merge(step % 2, version(step, ELEMENTS), {"t": step})
    journal.close()
    found = Journal.resume(folder, "uid", WIDE, "bf16", tape, disk)
    assert found is not None and found[1].machine == {"t": 12}
    found[0].close()


def test_a_volume_without_room_for_two_versions_ends_the_syncer_with_both_numbers(folder: Path) -> None:
    size = 4_400_000
    message = (
        f"the journal of {2 * ELEMENTS} parameters needs {4 * 8 * ELEMENTS} bytes, .* volume of {size} has "
        f"{size - size // 4 - 2 * (size // 32)} .* more spec.syncer.storage, or more spec.syncer.shards"
    )
    journal = Journal(folder, "uid", WIDE, "lineage", 10**9, Small(folder, size))
    with pytest.raises(Terminal, match=message) as caught:
        journal.begin([version(0, ELEMENTS)] * 2, {"t": 0})
    journal.close()
    assert caught.value.reason == "VolumeTooSmall"
    assert list(folder.iterdir()) == []


def test_a_file_system_that_does_not_say_how_large_it_is_bounds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(f_blocks=0, f_bfree=0, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: silent)
    assert journals.room(layout(), LOCAL.volume(tmp_path), 128 << 20) == journals.LOG


def test_another_runs_journal_is_set_aside_and_another_layout_is_terminal(folder: Path) -> None:
    begun(folder, "old").close()
    assert Journal.resume(folder, "new", layout(), "bf16") is None
    assert list(folder.iterdir()) == []
    assert log(folder.with_name("journal-of-old")).exists()
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
        journal.begin([version(0, size)] * 2, {"t": 0})
        for p in (0, 1):
            journal.merge(p, version(1, size), {"t": p})
        journal.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["compiled", f"layout-{number}"]
    found = Journal.resume(folder, "uid", mine, "bf16", 0, disk)
    assert found is not None and found[1].machine == {"t": 1}
    found[0].close()
