"""The event tape: everything is read back unchanged, and a re-run gives the same decisions and the same bits."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lone_shard import joined
from sim_scenario import draw
from sim_shard import SimTape
from sim_world import World

from atoll_cli.__main__ import main
from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.checkpoint import Part as CutPart
from atoll_runtime.contract import CheckpointSpec, OuterSpec, RunContract, TargetSpec
from atoll_runtime.protocol.effects import SendPull
from atoll_runtime.protocol.events import Persisted, Received, Said
from atoll_runtime.protocol.fragments import Array, Layout, TensorInfo, build_layout
from atoll_runtime.protocol.frames import whole
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Part, Report
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.tape import Contributed, Decided, Entry, Opening, TapeError, encode
from atoll_runtime.replay import replay, tensors
from atoll_runtime.replay.reader import read
from atoll_runtime.simulate.eventloop import SimLoop
from atoll_runtime.simulate.storage import MemoryBucket
from atoll_runtime.syncer.disk import LocalDisk
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.hosts import Session
from atoll_runtime.syncer.recovery import recover, slices
from atoll_runtime.syncer.state import Version
from atoll_runtime.syncer.tape import PATTERN, Tape
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import Announce, Pull

P = 3
MODEL = [
    TensorInfo("embedding", (16, 8), stacked=False, embedding=True),
    TensorInfo("layers/w", (4, 8, 8), stacked=True, embedding=False),
    TensorInfo("norm", (8,), stacked=False, embedding=False),
]


@dataclass
class Unit:
    """A learner unit whose outer gradients are noise."""

    name: str
    hosts: int
    incarnation: int = 0
    steps: int = 0
    outgoing: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    """What the shard has sent to its host 0."""
    versions: list[int] = field(default_factory=list)
    since: list[int] = field(default_factory=list)
    """Steps since the newest version of each fragment."""


class Shard:
    """The driver of a shard with its machine, merges, journal and tape in simulated time, and two units."""

    def __init__(self, run: RunContract, folder: Path, shard: int, **tape: Any) -> None:
        self.run_contract, self.folder, self.random = run, folder, np.random.default_rng(7 + shard)
        self.rules = Rules.of(run, shard)
        self.whole = build_layout(MODEL, P, len(run.shards))
        self.layout: Layout = self.whole.shard(shard)
        self.units = [Unit("a", 1), Unit("b", 2)]
        self.bucket = MemoryBucket()
        self.start(**tape)

    def start(self, **tape: Any) -> None:
        """Starts a process of the shard, to which the units connect."""
        first = {info.name: self.noise(int(np.prod(info.shape))).reshape(info.shape) for info in MODEL}
        journal = self.folder / "journal"
        start = recover(self.run_contract, self.rules, self.whole, journal, self.bucket, lambda: first)
        self.tape = Tape(self.folder / "tape", **{"depth": "Contributions", **tape})
        self.loop = SimLoop(lambda _: 0.2)

        async def begin() -> None:
            self.driver = Driver(self.run_contract, self.whole, start, self.bucket, self.tape, 1 << 30)
            self.driver.start()

        self.loop.create_task(begin())
        self.loop.run_for(0.0)
        self.machine = self.driver.machine
        for unit in self.units:
            self.join(unit)

    def kill(self) -> None:
        """Ends the process. Its tape is written as far as it was handed over."""
        self.tape.close()
        self.driver.journal.close()
        self.loop.close()

    def noise(self, size: int) -> Array:
        return self.random.standard_normal(size).astype(np.float32)

    @property
    def fragments(self) -> list[Version]:
        return self.driver.state.fragments

    def run(self, steps: int = 1000) -> Shard:
        """Runs for `steps` steps of every unit, or to the end of the run."""
        for _ in range(steps):
            if self.machine.final:
                break
            self.loop.run_for(0.5)
            for unit in self.units:
                self.train(unit)
        return self

    def join(self, unit: Unit) -> None:
        """Its next incarnation connects."""
        unit.incarnation, unit.steps = unit.incarnation + 1, 0
        unit.versions, unit.since = [each.version for each in self.fragments], [0] * P
        for host in range(unit.hosts):
            session = Session(unit.name, unit.incarnation, host)
            self.driver.sessions.add(session)
            self.driver.feed(joined(unit.name, unit.incarnation, host, unit.hosts))
            unit.outgoing = session.outgoing

    def train(self, unit: Unit) -> None:
        unit.steps += 1
        unit.since = [count + 1 for count in unit.since]
        k = unit.steps
        self.driver.feed(Said(unit.name, unit.incarnation, Report(k, k, 10 * k, 1.0, 0.5)))
        while not unit.outgoing.empty():
            match unit.outgoing.get_nowait():
                case Announce(p, version):
                    unit.versions[p], unit.since[p] = version, 0
                case Pull(round_id) if unit.since[round_id.fragment]:
                    self.contribute(unit, round_id)

    def contribute(self, unit: Unit, round_id: RoundId) -> None:
        p, steps, driver = round_id.fragment, unit.since[round_id.fragment], self.driver
        fragment = self.layout.fragments[p]
        share = -(-fragment.size // unit.hosts)
        wire = codecs.encode(self.noise(fragment.size), "bf16", share * unit.hosts)
        for host in range(unit.hosts):
            start, stop = host * share, (host + 1) * share
            of = unit.name, unit.incarnation, host, unit.hosts, round_id, unit.versions[p]
            counts = steps, 10 * steps, unit.steps, unit.steps
            part = Part(*of, *counts, start, stop, share * unit.hosts, 10 * unit.steps)
            header = Header(part, "bf16", 2 * share)
            if not self.machine.admit(part) and not driver.parts.reserve(header):
                held = driver.arrays.read(fragment, header, memoryview(bytes(wire[2 * start : 2 * stop])))
                driver.parts.hold(header, held)
                driver.feed(Received(part, held.scan.square))

    def theta(self) -> dict[str, Array]:
        """Θ by tensor name."""
        theta: dict[str, Array] = {}
        for p, each in enumerate(self.fragments):
            self.layout.unflatten(p, each.theta, theta)
        return theta


Begin = Callable[..., Shard]


@pytest.fixture(name="begin")
def begin_fixture(make_run: Callable[..., RunContract], tmp_path: Path) -> Iterator[Begin]:
    """Makes a shard of a run of `steps` steps. Other options are those of the tape."""
    made: list[Shard] = []

    def begin(
        folder: Path = tmp_path, shard: int = 0, shards: int = 1, steps: int = 30, **tape: Any
    ) -> Shard:
        run = make_run(
            shards,
            outer=OuterSpec(fragments=P, interval=6, overlap=2, learning_rate=0.7, momentum=0.9),
            target=TargetSpec(global_steps=steps),
            checkpoint=CheckpointSpec(uri="file:///nowhere", interval_steps=1000),
        )
        made.append(Shard(run, folder, shard, **tape))
        return made[-1]

    yield begin
    for each in made:
        each.kill()


@pytest.fixture(name="finished")
def finished_fixture(begin: Begin) -> Shard:
    """A run to its end, in which b is replaced. Its tape is in `tmp_path/tape`."""
    shard = begin(steps=60).run(20)
    shard.join(shard.units[1])
    shard.run()
    shard.tape.close()
    return shard


def entries(path: Path) -> list[tuple[Entry, bytes]]:
    return [(stored.entry, stored.body) for stored in read(path)]


def write(path: Path, records: list[tuple[Entry, bytes]]) -> None:
    """Writes a tape with correct checksums, whatever its content."""
    with path.open("wb") as file:
        for entry, body in records:
            file.writelines(whole(encode(entry), body))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "tape").glob(PATTERN))


def only(folder: Path) -> Path:
    (path,) = segments(folder)
    return path


def same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].tobytes() == expected[name].tobytes() for name in expected
    )


def replays(shard: Shard, path: Path | None = None) -> Any:
    """Re-runs the tape. It must be identical and lead to the shard's model."""
    found = replay(path or shard.folder / "tape")
    assert found.difference is None
    assert same(tensors([(found.facts, found.held)])[0], shard.theta())
    return found


def test_a_whole_run_is_replayed_decision_by_decision_and_its_model_bit_for_bit(
    finished: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replays(finished)
    theta, momentum = tensors([(found.facts, found.held)])
    assert all(np.any(momentum[name] != 0) for name in theta)
    folder, merges = str(tmp_path / "tape"), finished.machine.rounds.merges
    assert main(["replay", folder]) == 0
    said = capsys.readouterr().out
    assert "identical" in said and f"{merges} merges" in said
    assert main(["replay", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (tape,) = told["tapes"]
    assert told["identical"] is True and tape["torn"] == tape["gaps"] == tape["restarts"] == 0
    assert tape["merges"] == merges > 10 and tape["step"] == finished.machine.step
    assert tape["versions"] == list(finished.driver.state.versions) and tape["units"] == {"a": 1, "b": 2}
    assert main(["replay", folder, "--print", "--check", f"file://{folder}"]) == 2
    assert "--print goes without --check" in capsys.readouterr().err
    assert main(["replay", folder, "--print"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["kind"] == "Opening" and lines[0]["machine"]["kind"] == "Coordinator"
    assert lines[0]["facts"]["run"] == "walk" and lines[0]["depth"] == "Contributions"


def other_bits(found: list[tuple[Entry, bytes]]) -> str:
    i = [i for i, (entry, _) in enumerate(found) if isinstance(entry, Contributed)][3]
    entry, body = found[i]
    found[i] = entry, bytes([body[0] ^ 1]) + body[1:]
    assert isinstance(entry, Contributed)
    return f"after the merge of {entry.round}: recorded ["


def another_decision(found: list[tuple[Entry, bytes]]) -> str:
    decided = [(i, entry) for i, (entry, _) in enumerate(found) if isinstance(entry, Decided)]
    i, entry = next((i, entry) for i, entry in decided if SendPull in map(type, entry.decisions))
    found[i] = msgspec.structs.replace(entry, decisions=entry.decisions[:-1]), b""
    return "decisions about {'kind': 'Said'"


def an_event_that_never_was(found: list[tuple[Entry, bytes]]) -> str:
    found.insert(5, (Decided(100.0, Persisted(RoundId(9, 1, 0)), ()), b""))
    return "found KeyError"


def a_merge_of_no_round(found: list[tuple[Entry, bytes]]) -> str:
    found.insert(5, (Contributed(RoundId(9, 1, 0), ()), b""))
    return "the merge of step 9 of fragment 1"


def test_what_differs_is_named_with_its_place_and_ends_with_1(
    finished: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = only(tmp_path)
    whole = entries(path)
    for change in (other_bits, another_decision, an_event_that_never_was, a_merge_of_no_round):
        changed = list(whole)
        named = change(changed)
        write(path, changed)
        assert main(["replay", str(path)]) == 1
        said = capsys.readouterr().out
        assert f"DIFFERENCE: {path.name}, byte " in said and named in said, change.__name__
        assert change is not other_bits or "\n  3 merges computed again" in said


def test_a_damaged_byte_before_the_last_record_is_refused(
    finished: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = only(tmp_path)
    whole = path.read_bytes()
    for place in (0.1, 0.5, 0.9):
        raw = bytearray(whole)
        raw[int(len(raw) * place)] ^= 1
        path.write_bytes(raw)
        assert main(["replay", str(path)]) == 2
        said = capsys.readouterr().err
        assert re.search(r"the record at byte \d+ is damaged, whole ones follow from \d+", said)


def test_a_torn_tail_is_tolerated(finished: Shard, tmp_path: Path) -> None:
    path = only(tmp_path)
    whole = replay(path)
    raw = path.read_bytes()
    for cut in (1, 2, len(raw) // 2):
        path.write_bytes(raw[:-cut])
        found = replay(path)
        assert found.difference is None
        assert found.torn > 0 or cut > 2, "half of it may end with a record"
        assert found.events < whole.events
        assert (found.merges == whole.merges) == (cut <= 2)


def test_a_tape_stays_within_its_limit_and_each_segment_left_replays_by_itself(
    begin: Begin, tmp_path: Path
) -> None:
    limit = 120_000
    shard = begin(limit=limit, steps=100).run()
    shard.tape.close()
    left = segments(tmp_path)
    assert len(left) >= 2 and left[0].name > "tape-00000001.atl"
    assert sum(path.stat().st_size for path in left) <= limit
    for path in left:
        assert replay(path).difference is None
    found = replays(shard)
    assert found.segments == len(left) and found.merges > 0
    left[-2].write_bytes(left[-2].read_bytes()[:-1])
    with pytest.raises(TapeError, match=r"the segment before tape-\d+.atl is damaged in its last \d+ bytes"):
        replay(tmp_path / "tape")


def test_a_merge_in_flight_at_the_turn_of_a_segment_is_not_lost(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_runtime.syncer.tape.SEGMENTS", 11_000)
    shard = begin(limit=40_000_000, steps=60).run(100)
    shard.tape.close()
    turns = [entries(path) for path in segments(tmp_path)]
    assert sum(isinstance(entry, Contributed) for turn in turns[1:] for entry, _ in turn[1:2]) > 5
    replays(shard)


def test_a_model_too_large_for_the_limit_leaves_the_decisions(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard = begin(limit=8_000)
    assert "records decisions alone" in caplog.text
    shard.run(10)
    shard.tape.close()
    found = replay(segments(tmp_path)[-1])
    assert found.depth == "Decisions" and found.difference is None and not found.held


class Volume(LocalDisk):
    """A disk that blocks writes until `mended`. After that they fail if it has a `fault`."""

    def __init__(self, fault: OSError | None = None) -> None:
        self.mended, self._fault = threading.Event(), fault

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        assert self.mended.wait(60)
        if self._fault is not None:
            raise self._fault
        return super().write(file, parts)


@pytest.fixture(name="slow")
def slow_fixture() -> Iterator[Volume]:
    volume = Volume()
    yield volume
    volume.mended.set()


def test_a_slow_volume_never_blocks_the_run_and_leaves_a_gap(
    begin: Begin, slow: Volume, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    shard = begin(backlog=50_000, steps=200, disk=slow).run(100)
    assert shard.machine.rounds.merges > 5
    slow.mended.set()
    while not shard.machine.final:
        eventually(lambda: shard.tape._waiting == 0)
        shard.run(5)
    shard.tape.close()
    found = replays(shard, segments(tmp_path)[1])
    assert found.gaps == 1 and found.merges > 0
    assert replays(shard).gaps == 1


def test_a_snapshot_that_waits_for_a_slow_volume_leaves_no_gap(
    begin: Begin, slow: Volume, eventually: Callable[..., Any]
) -> None:
    shard = begin(backlog=8_000, disk=slow).run(3)
    assert shard.tape._waiting + 8 * shard.layout.size > 8_000
    slow.mended.set()
    while not shard.machine.final:
        eventually(lambda: shard.tape._waiting == 0)
        shard.run(1)
    shard.tape.close()
    assert replays(shard).gaps == 0


def test_a_volume_that_fails_ends_the_tape_with_one_warning_and_not_the_run(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = Volume(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    full.mended.set()
    (tmp_path / "2").mkdir()
    (tmp_path / "2/tape").touch()
    for shard in (begin(tmp_path / "1", disk=full), begin(tmp_path / "2")):
        caplog.clear()
        shard.run()
        shard.tape.close()
        assert shard.machine.final
        warnings = [each.message for each in caplog.get_records("call") if each.levelno >= logging.WARNING]
        assert sum("the event tape ends here" in each for each in warnings) <= 1
        assert shard.tape._failed


@pytest.mark.parametrize("seed", range(8))
def test_every_shards_tape_of_a_run_with_faults_is_replayed_decision_by_decision(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a random schedule shards and units are killed, links break, and volumes are lost. Each process of a shard goes
    on in another segment."""
    tapes: dict[int, Tape] = {}
    begun, seen = Counter[int](), SimTape.event

    def begin(self: SimTape, *facts: Any) -> None:
        shard = self.process.number
        begun[shard] += 1
        if shard in tapes:
            tapes[shard].close()
        tapes[shard] = Tape(tmp_path / str(shard), "Decisions")
        tapes[shard].begin(*facts)

    def event(self: SimTape, event: Any, now: float, effects: Any) -> None:
        seen(self, event, now, effects)
        if self.process.alive:
            tapes[self.process.number].event(event, now, effects)

    monkeypatch.setattr(SimTape, "begin", begin)
    monkeypatch.setattr(SimTape, "event", event)
    world = World(draw(seed))
    world.run()
    for shard, tape in tapes.items():
        tape.close()
        found, process = replay(tmp_path / str(shard)), world.shards[shard].process
        assert found.difference is None and found.events > 20 and process is not None
        assert (found.segments, found.restarts) == (begun[shard], begun[shard] - 1)
        assert found.versions == tuple(process.machine.versions)
        assert found.units == {name: unit.incarnation for name, unit in process.machine.units.items()}
    world.close()


@pytest.mark.parametrize("content", [b"", b"no tape at all\n" * 99, os.urandom(1000), None])
def test_without_a_tape_it_ends_with_2(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    reason = f"{path}: No such file or directory"
    if content is not None:
        path.write_bytes(content)
        reason = f"{path}: no whole record of an event tape"
    for option in ([], ["--print"]):
        assert main(["replay", str(path), *option]) == 2
        assert capsys.readouterr() == ("", f"atoll: {reason}\n")
    assert main(["replay", str(path), "--step", "2"]) == 2
    assert main(["replay", str(tmp_path)]) == 2
    assert "no tape-*.atl in this folder" in capsys.readouterr().err


def test_a_tape_of_another_format_is_refused(begin: Begin, tmp_path: Path) -> None:
    shard = begin().run(2)
    shard.kill()
    path = only(tmp_path)
    found = entries(path)
    opening, body = found[0]
    assert isinstance(opening, Opening)
    write(path, [(msgspec.structs.replace(opening, format=99), body), *found[1:]])
    with pytest.raises(TapeError, match=r"format 99, this version reads \d"):
        replay(path)
    write(path, found[1:])
    with pytest.raises(TapeError, match="a segment starts with an Opening"):
        replay(path)


def test_the_tapes_of_all_shards_together_are_checked_against_a_checkpoint(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [begin(tmp_path / str(s), s, 2) for s in range(2)]
    cuts: list[tuple[Version, ...]] = []
    for step in range(40):
        for shard in shards:
            shard.run(1)
            shards[1].driver.feed(shards[0].machine.orders)
        if step in (25, 29):  # with other versions in each
            cuts.append(tuple(shards[len(cuts)].driver.state.fragments))
    assert all(shard.machine.rounds.merges > 10 for shard in shards)
    for shard in shards:
        shard.tape.close()
    store = GlobalStore(f"file://{tmp_path}/bucket")
    for step, noise in ((12, 0.0), (13, 1.0)):
        for s, (shard, cut) in enumerate(zip(shards, cuts, strict=True)):
            own = slices(shard.layout, cut)
            if "norm" in own:
                own["norm"].theta[0] += noise
            store.save_part(CutPart(step, s, 2, own, tuple(each.version for each in cut)))
        store.complete(step, 2, {})
    tapes = [str(tmp_path / str(s) / "tape") for s in range(2)]
    assert main(["replay", *tapes, "--check", store.uri, "--step", "12"]) == 0
    assert "the same bits in 3 tensors" in capsys.readouterr().out
    assert main(["replay", tapes[0], "--check", store.uri]) == 2
    assert "2 shards" in capsys.readouterr().err
    with pytest.raises(TapeError, match="the checkpoint of step 9 is of 3 shards, the tape of 2"):
        replay(Path(tapes[0]), Cut(9, {}, {}, (), shards=3))
    assert main(["replay", *tapes, "--check", store.uri, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["check"]["differing"] == ["theta norm"]
