"""The journal: what was written is there after any cut; what was not whole is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from atoll_runtime.sync.fragments import Layout, TensorInfo, build_layout
from atoll_runtime.syncer import journal as journals
from atoll_runtime.syncer.errors import JournalError, Terminal
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.state import Version
from atoll_runtime.syncer.tape import Tape


def layout(width: int = 3) -> Layout:
    return build_layout([TensorInfo("w", (2, width), stacked=True, embedding=False)], 2)


def version(number: int, size: int = 3) -> Version:
    values = np.arange(size, dtype=np.float32) + number
    return Version.make(number, values, -values, "bf16")


def begun(folder: Path, uid: str = "uid") -> Journal:
    journal = Journal(folder, uid, layout(), "lineage")
    journal.begin([version(0), version(0)], {"t": 0})
    return journal


def segment(folder: Path) -> Path:
    (found,) = folder.glob("segment-*.wal")
    return found


def test_a_journal_cut_at_any_byte_of_its_last_record_holds_all_records_before_it(tmp_path: Path) -> None:
    journal = begun(tmp_path / "whole")
    journal.merge(0, version(7), {"t": 7})
    before = segment(tmp_path / "whole").stat().st_size
    journal.merge(1, version(8), {"t": 8})
    journal.close()
    whole = segment(tmp_path / "whole").read_bytes()
    for length in range(before, len(whole) + 1):
        folder = tmp_path / "cut"
        folder.mkdir()
        path = folder / segment(tmp_path / "whole").name
        path.write_bytes(whole[:length])
        found = Journal.resume(folder, "uid", layout(), "bf16")
        assert found is not None
        resumed, replay = found
        last = length == len(whole)
        assert replay.machine == {"t": 8 if last else 7}
        assert [f.version for f in replay.fragments] == [7, 8 if last else 0]
        assert np.array_equal(replay.fragments[0].theta, version(7).theta)
        assert np.array_equal(replay.fragments[0].momentum, version(7).momentum)
        resumed.merge(1, version(9), {"t": 9})  # and it can be written to again
        resumed.close()
        again = Journal.resume(folder, "uid", layout(), "bf16")
        assert again is not None and again[1].machine == {"t": 9}
        again[0].close()
        shutil.rmtree(folder)


def test_a_flipped_bit_ends_the_replay_before_its_record(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    good = segment(tmp_path).stat().st_size
    journal.merge(0, version(7), {"t": 7})
    journal.close()
    data = bytearray(segment(tmp_path).read_bytes())
    data[good + 60] ^= 1
    segment(tmp_path).write_bytes(data)
    found = Journal.resume(tmp_path, "uid", layout(), "bf16")
    assert found is not None and found[1].machine == {"t": 0}
    found[0].close()


def test_a_damaged_snapshot_is_not_used(tmp_path: Path) -> None:
    begun(tmp_path).close()
    path = segment(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    assert Journal.resume(tmp_path, "uid", layout(), "bf16") is None


def test_a_long_segment_is_replaced_by_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LEAST_GROWTH", 2000)
    journal = begun(tmp_path)
    for step in range(1, 60):
        journal.merge(step % 2, version(step), {"t": step})
    journal.close()
    assert segment(tmp_path).name > "segment-00000001.wal"
    assert segment(tmp_path).stat().st_size < 3000
    found = Journal.resume(tmp_path, "uid", layout(), "bf16")
    assert found is not None
    assert [f.version for f in found[1].fragments] == [58, 59] and found[1].machine == {"t": 59}
    found[0].close()


def test_another_runs_journal_is_set_aside_and_another_layout_is_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    begun(folder, "old").close()
    assert Journal.resume(folder, "new", layout(), "bf16") is None
    assert list(folder.iterdir()) == []
    assert segment(tmp_path / "journal-of-old").exists()
    begun(folder, "new").close()
    with pytest.raises(Terminal, match=r"model and outer.fragments") as caught:
        Journal.resume(folder, "new", layout(width=4), "bf16")
    assert caught.value.reason == "LayoutChanged"


def test_a_volume_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"Not a directory|File exists"):
        Journal.resume(tmp_path / "file", "uid", layout(), "bf16")


def test_the_tape_is_bounded(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape.jsonl", limit=500)
    for number in range(100):
        tape.write({"event": "merge", "t": number})
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2 and max(sizes) <= 500
    assert '"t":99' in (tmp_path / "tape.jsonl").read_text()
