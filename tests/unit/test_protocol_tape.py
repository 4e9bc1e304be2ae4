"""The event tape: everything comes back as it was, and a re-run gives the same decisions and the same bits."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_cli.__main__ import main
from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.checkpoint import Part as CutPart
from atoll_runtime.merge import gradients as incoming
from atoll_runtime.merge.rda import merge_step
from atoll_runtime.protocol import restoring
from atoll_runtime.protocol.effects import Effect, Merge, Persist, Publish, RecordCut, SendPull, Wake
from atoll_runtime.protocol.encoding import TapeError, decode, encode
from atoll_runtime.protocol.events import (
    Event,
    FinalCut,
    Joined,
    Left,
    Merged,
    Part,
    Persisted,
    Received,
    Reported,
    Tick,
)
from atoll_runtime.protocol.fragments import Array, Layout, TensorInfo, build_layout
from atoll_runtime.protocol.frames import frame
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.tape import MAGIC, Computed, Contributed, Decided, Facts, Opening, Record, read
from atoll_runtime.replay import replay, tensors
from atoll_runtime.syncer import segments
from atoll_runtime.syncer.slices import slices
from atoll_runtime.syncer.state import Version
from atoll_runtime.syncer.tape import Snapshot, Tape
from atoll_runtime.transport import codecs

P = 3
RULES = Rules(
    fragments=P,
    interval=6,
    overlap=2,
    quorum=1,
    grace_fraction=0.8,
    grace_steps=1.0,
    target_steps=30,
    target_tokens=None,
    silence=3.0,
)
MODEL = [
    TensorInfo("embedding", (16, 8), stacked=False, embedding=True),
    TensorInfo("layers/w", (4, 8, 8), stacked=True, embedding=False),
    TensorInfo("norm", (8,), stacked=False, embedding=False),
]
WHOLE = build_layout(MODEL, P)


class Unit:
    """A learner unit whose outer gradients are noise."""

    def __init__(self, name: str, hosts: int = 1) -> None:
        self.name, self.hosts, self.incarnation = name, hosts, 0
        self.alive = self.mute = False
        self.steps = 0
        self.versions, self.since = [0] * P, [0] * P
        self.pulls: list[RoundId] = []


class Shard:
    """A shard of a syncer with the real machine, merge and tape, in simulated time."""

    def __init__(
        self, folder: Path, layout: Layout = WHOLE, shard: int = 0, shards: int = 1, **options: Any
    ) -> None:
        self.rules = replace(RULES, target_steps=options.pop("steps", 30), shard=shard)
        self.layout, self.random = layout, np.random.default_rng(7 + shard)
        sizes = tuple(fragment.size for fragment in layout.fragments)
        self.machine = restoring.begin(self.rules, sizes, [0] * P)
        self.fragments = [
            Version.make(0, self.noise(size), np.zeros(size, np.float32), "bf16") for size in sizes
        ]
        self.facts = Facts("walk", "uid", shard, shards, layout, "RDA", 0.7, 0.9, "bf16", True)
        self.units = {"a": Unit("a"), "b": Unit("b", hosts=2)}
        self.now, self.wake = 100.0, 0.0
        self.events: deque[Event] = deque()
        self.later: list[Event] = []
        self.parts: dict[RoundId, dict[tuple[str, int], tuple[int, bytes]]] = {}
        self.fresh: dict[RoundId, Version] = {}
        self.tape = Tape(folder, options.pop("depth", "Contributions"), **options)

    def noise(self, size: int) -> Array:
        return self.random.standard_normal(size).astype(np.float32)

    def begin(self) -> Shard:
        self.tape.begin(self.facts, lambda: Snapshot(self.machine, self.now, tuple(self.fragments)))
        for unit in self.units.values():
            self.join(unit)
        return self

    def run(self, steps: int = 1000) -> Shard:
        for _ in range(steps):
            self.now += 0.5
            due, self.later = self.later, []
            for event in due:
                self.feed(event)
            for unit in self.units.values():
                if unit.alive and not unit.mute:
                    self.train(unit)
            if self.wake and self.wake <= self.now:
                self.feed(Tick())
            if self.machine.final:
                break
        return self

    def restart(self, folder: Path) -> Shard:
        """Another process on the same volume, with what is durable; the first one closed nothing."""
        self.tape._jobs.put(None)
        assert self.tape._thread is not None
        self.tape._thread.join(30)
        assert not self.tape._thread.is_alive()
        self.machine = restoring.restore(
            self.rules, tuple(each.size for each in self.machine.rounds.versions), self.machine.committed
        )
        self.now = 3.0
        self.fresh.clear()
        self.parts.clear()
        self.later.clear()
        self.tape = Tape(folder, "Contributions")
        return self.begin()

    def join(self, unit: Unit) -> None:
        unit.incarnation, unit.steps, unit.alive, unit.pulls = unit.incarnation + 1, 0, True, []
        unit.versions = [each.version for each in self.fragments]
        unit.since = [0] * P
        for host in range(unit.hosts):
            self.feed(Joined(unit.name, unit.incarnation, host, unit.hosts, 0, ""))

    def die(self, unit: Unit) -> None:
        unit.alive = False
        for host in range(unit.hosts):
            self.feed(Left(unit.name, unit.incarnation, host))

    def train(self, unit: Unit) -> None:
        unit.steps += 1
        unit.since = [count + 1 for count in unit.since]
        steps = unit.steps
        self.feed(Reported(unit.name, unit.incarnation, 0, steps, steps, 10 * steps, 1.0, 0.5, steps))
        for round_id in unit.pulls[:]:
            unit.pulls.remove(round_id)
            self.contribute(unit, round_id)

    def contribute(self, unit: Unit, round_id: RoundId) -> None:
        p = round_id.fragment
        size = self.layout.fragments[p].size
        share = -(-size // unit.hosts)
        wire = bytes(codecs.encode(self.noise(size), "bf16", share * unit.hosts))
        for host in range(unit.hosts):
            start, stop = host * share, (host + 1) * share
            part = Part(
                unit.name,
                unit.incarnation,
                host,
                unit.hosts,
                round_id,
                unit.versions[p],
                unit.since[p],
                10 * unit.since[p],
                unit.steps,
                unit.steps,
                start,
                stop,
                share * unit.hosts,
                10 * unit.steps,
            )
            if not self.machine.admit(part):
                held = self.parts.setdefault(round_id, {})
                held[unit.name, host] = start, wire[2 * start : 2 * stop]
            self.feed(Received(part, 1.0))

    def feed(self, event: Event) -> None:
        self.events.append(event)
        while len(self.events):
            event = self.events.popleft()
            if isinstance(event, Persisted):
                self.fragments[event.round.fragment] = self.fresh.pop(event.round)
            effects = self.machine.handle(event, self.now)
            self.tape.event(event, self.now, effects)
            for effect in effects:
                self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case SendPull(round_id, unit):
                self.units[unit].pulls.append(round_id)
            case Merge(round_id, members):
                parts = self.parts.pop(round_id)
                self.tape.contributions(round_id, members, parts)
                new = self.fresh[round_id] = merged(self.facts, self.fragments, effect, parts)
                self.tape.merged(round_id, new.theta, new.momentum)
                self.later.append(Merged(round_id, 1e9 + self.now))
            case Persist(round_id):
                self.later.append(Persisted(round_id))
            case Publish(p, version):
                for unit in self.units.values():
                    unit.versions[p], unit.since[p] = version, 0
            case RecordCut(cut) if cut.final:
                self.events.append(FinalCut("file:///cut"))
            case Wake(at):
                self.wake = at


def merged(
    facts: Facts, old: list[Version], merge: Merge, parts: Mapping[tuple[str, int], tuple[int, bytes]]
) -> Version:
    """The service's merge."""
    p = merge.round.fragment
    fragment, gradients = facts.layout.fragments[p], []
    for member in merge.members:
        sent = [
            incoming.HostPart(
                start, bytearray(body), incoming.scan(fragment, bytearray(body), facts.codec, start)
            )
            for (unit, _), (start, body) in parts.items()
            if unit == member.unit
        ]
        gradients.append(incoming.Gradient(member.weight, tuple(sent)))
    result = merge_step(
        fragment,
        gradients,
        old[p].theta,
        old[p].momentum,
        codec=facts.codec,
        rule=facts.merge,
        learning_rate=facts.learning_rate,
        outer_momentum=facts.momentum,
    )
    return Version(merge.round.step, result.theta, result.momentum, result.wire)


def model(layout: Layout, fragments: Sequence[Version]) -> dict[str, Array]:
    """Θ by tensor name."""
    theta: dict[str, Array] = {}
    for p, each in enumerate(fragments):
        layout.unflatten(p, each.theta, theta)
    return theta


@pytest.fixture(name="finished")
def finished_fixture(tmp_path: Path) -> Shard:
    """A run to its end, in which b is replaced and a is silent for a while; its tape is in `tmp_path/tape`."""
    shard = Shard(tmp_path / "tape", steps=60).begin().run(20)
    shard.die(shard.units["b"])
    shard.run(5)
    shard.join(shard.units["b"])
    shard.run(4)
    shard.units["a"].mute = True
    shard.run(16)
    shard.units["a"].mute = False
    shard.run()
    shard.tape.close()
    return shard


def records(path: Path) -> list[tuple[Record, bytes]]:
    return [(stored.record, bytes(stored.body)) for stored in read(path.read_bytes(), path.name)]


def write(path: Path, records: list[tuple[Record, bytes]]) -> None:
    """A tape with good checksums, whatever it says."""
    with path.open("wb") as file:
        for record, body in records:
            head = encode(record)
            file.write(frame(MAGIC, head, [body]) + head + body)


def only(folder: Path) -> Path:
    (path,) = segments.found(folder)
    return path


def same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].tobytes() == expected[name].tobytes() for name in expected
    )


def value_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field of an event, to the limits of its type."""
    if dataclasses.is_dataclass(hint):
        return st.builds(hint, **{name: value_of(each) for name, each in get_type_hints(hint).items()})
    if get_origin(hint) is tuple:
        return st.lists(value_of(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is Mapping:
        simple = (
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9)
        )
        tree = st.recursive(
            simple, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3)
        )
        return st.dictionaries(st.text(max_size=3), tree, max_size=3)
    if get_origin(hint) in (types.UnionType,):
        return st.one_of(value_of(each) for each in get_args(hint))
    return {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(),
        str: st.text(max_size=9),
        bool: st.booleans(),
        type(None): st.none(),
    }[hint]


@given(st.data())
def test_every_event_and_every_decision_comes_back_as_it_was(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([*get_args(Event), *get_args(Effect)]))
    value = data.draw(value_of(kind))
    again = decode(encode(value))
    assert type(again) is kind
    assert repr(again) == repr(value) and encode(again) == encode(value)


def test_a_whole_run_is_replayed_decision_by_decision_and_its_model_bit_for_bit(
    finished: Shard, tmp_path: Path
) -> None:
    found = replay(tmp_path / "tape")
    assert found.difference is None and found.torn == found.gaps == found.restarts == 0
    assert found.merges == finished.machine.rounds.merges > 10
    assert found.versions == tuple(each.version for each in finished.fragments)
    assert found.units == {"a": 1, "b": 2} and found.step == finished.machine.step
    theta, momentum = tensors([(found.facts, found.held)])
    assert same(theta, model(WHOLE, finished.fragments))
    assert all(np.any(momentum[name] != 0) for name in theta)


def test_the_failure_trace_tells_who_came_went_was_replaced_and_fell_silent(
    finished: Shard, tmp_path: Path
) -> None:
    trace = [(each.unit, each.what, each.incarnation, each.host) for each in replay(tmp_path / "tape").trace]
    story = [entry for entry in trace if entry[1] != "Dropped"]
    assert story == [
        ("a", "Joined", 1, 0),
        ("b", "Joined", 1, 0),
        ("b", "Joined", 1, 1),
        ("b", "Left", 1, 0),
        ("b", "Left", 1, 1),
        ("b", "Replaced", 2, 0),
        ("b", "Joined", 2, 1),
        ("a", "Silent", 1, None),
        ("a", "Back", 1, None),
    ]


def test_a_machine_in_the_middle_of_rounds_comes_back_whole(tmp_path: Path) -> None:
    shard = Shard(tmp_path).begin().run(13)
    assert shard.machine.rounds.held
    assert decode(encode(shard.machine)) == shard.machine
    undeclared = {name for name in vars(shard.machine) if name not in shard.machine.__dataclass_fields__}
    assert not undeclared
    shard.tape.close()


def test_a_contribution_of_other_bits_is_found_and_named(finished: Shard, tmp_path: Path) -> None:
    path = only(tmp_path / "tape")
    found = records(path)
    at = [i for i, (record, _) in enumerate(found) if isinstance(record, Contributed)][3]
    record, body = found[at]
    found[at] = record, bytes([body[0] ^ 1]) + body[1:]
    write(path, found)
    assert isinstance(record, Contributed)
    difference = replay(tmp_path / "tape").difference
    assert difference is not None
    assert f"after the merge of {record.round}" in difference.what and isinstance(difference.recorded, list)


def test_another_decision_is_found_and_named(finished: Shard, tmp_path: Path) -> None:
    path = only(tmp_path / "tape")
    found = records(path)
    for i, (record, body) in enumerate(found):
        if isinstance(record, Decided) and any(isinstance(each, SendPull) for each in record.decisions):
            changed = tuple(
                replace(each, least=each.least + 1) if isinstance(each, SendPull) else each
                for each in record.decisions
            )
            found[i] = replace(record, decisions=changed), body
            break
    write(path, found)
    difference = replay(path).difference
    assert difference is not None and "'kind': 'Reported'" in difference.what
    assert "SendPull" in str(difference.found) and difference.recorded != difference.found


def test_an_event_that_the_machine_never_had_is_a_difference_not_a_crash(
    finished: Shard, tmp_path: Path
) -> None:
    path = only(tmp_path / "tape")
    found = records(path)
    found.insert(5, (Decided(100.0, Persisted(RoundId(9, 1, 0)), ()), b""))
    write(path, found)
    difference = replay(path).difference
    assert difference is not None and "KeyError" in str(difference.found)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_byte_before_the_last_record_is_refused(
    finished: Shard, tmp_path: Path, place: float
) -> None:
    path = only(tmp_path / "tape")
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * place)] ^= 1
    path.write_bytes(raw)
    with pytest.raises(TapeError, match=r"the record at byte \d+ is damaged"):
        replay(path)


def test_a_torn_tail_is_tolerated(finished: Shard, tmp_path: Path) -> None:
    path = only(tmp_path / "tape")
    whole = replay(path)
    raw = path.read_bytes()
    for cut in (1, 30, len(raw) // 2):
        path.write_bytes(raw[:-cut])
        found = replay(path)
        assert found.difference is None
        assert found.torn > 0 and found.events <= whole.events
        assert (found.merges == whole.merges) == (cut <= 30)


def test_a_killed_syncer_goes_on_in_another_segment_and_both_are_replayed(tmp_path: Path) -> None:
    shard = Shard(tmp_path).begin().run(20)
    shard.restart(tmp_path).run()
    shard.tape.close()
    found = replay(tmp_path)
    assert found.difference is None and found.segments == 2 and found.restarts == 1
    assert [each.what for each in found.trace].count("Restarted") == 1
    assert same(tensors([(found.facts, found.held)])[0], model(WHOLE, shard.fragments))


def test_a_tape_stays_within_its_limit_and_each_segment_left_replays_by_itself(tmp_path: Path) -> None:
    limit = 120_000
    shard = Shard(tmp_path, limit=limit, steps=100).begin().run()
    shard.tape.close()
    left = segments.found(tmp_path)
    assert len(left) >= 2 and segments.number(left[0]) > 1
    assert sum(path.stat().st_size for path in left) <= limit
    for path in left:
        assert replay(path).difference is None
    found = replay(tmp_path)
    assert found.difference is None and found.segments == len(left) and found.merges > 0
    assert same(tensors([(found.facts, found.held)])[0], model(WHOLE, shard.fragments))


def test_a_merge_in_flight_at_the_turn_of_a_segment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_runtime.syncer.tape.SEGMENTS", 10_000)
    shard = Shard(tmp_path, limit=40_000_000).begin().run(70)
    shard.tape.close()
    turns = [records(path) for path in segments.found(tmp_path)]
    assert sum(isinstance(turn[1][0], Contributed) for turn in turns[1:]) > 5
    found = replay(tmp_path)
    assert found.difference is None
    assert same(tensors([(found.facts, found.held)])[0], model(WHOLE, shard.fragments))


def test_a_model_too_large_for_the_limit_leaves_the_decisions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard = Shard(tmp_path, limit=8_000).begin()
    assert "records decisions alone" in caplog.text
    shard.run(10)
    shard.tape.close()
    found = replay(segments.found(tmp_path)[-1])
    assert found.depth == "Decisions" and found.difference is None and not found.held


@pytest.fixture(name="slow_volume")
def slow_volume_fixture(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """The first segment's file takes nothing until the fixture is called."""
    pipe = tmp_path / "tape-00000001.atl"
    os.mkfifo(pipe)
    reader: list[threading.Thread] = []

    def mend() -> None:
        if not reader:
            reader.append(threading.Thread(target=pipe.read_bytes))
            reader[0].start()

    yield mend
    mend()
    reader[0].join(30)
    assert not reader[0].is_alive()


def test_a_slow_volume_never_blocks_the_run_and_leaves_a_gap(
    slow_volume: Callable[[], None], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    shard = Shard(tmp_path, backlog=50_000, steps=200).begin().run(100)
    assert shard.machine.rounds.merges > 5
    slow_volume()
    while not shard.machine.final:
        eventually(lambda: shard.tape._waiting == 0)
        shard.run(5)
    shard.tape.close()
    found = replay(tmp_path / "tape-00000002.atl")
    assert found.difference is None and found.gaps == 1 and found.merges > 0
    assert same(tensors([(found.facts, found.held)])[0], model(WHOLE, shard.fragments))


def test_a_full_volume_ends_the_tape_with_one_warning_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tape-00000001.atl").symlink_to("/dev/full")
    shard = Shard(tmp_path).begin().run()
    shard.tape.close()
    assert shard.machine.final
    warnings = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "the event tape ends here" in warnings[0]


def test_a_volume_that_cannot_be_used_ends_the_tape_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shard = Shard(tmp_path / "file" / "tape").begin().run()
    shard.tape.close()
    assert shard.machine.final


def test_atoll_replay_tells_a_person_and_a_program_what_it_found(
    finished: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "tape")
    assert main(["replay", folder, "--save", str(tmp_path / "theta.npz")]) == 0
    said = capsys.readouterr().out
    assert "identical" in said and f"{finished.machine.rounds.merges} merges" in said
    with np.load(tmp_path / "theta.npz") as saved:
        assert same(dict(saved), model(WHOLE, finished.fragments))
    assert main(["replay", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["identical"] is True and told["tapes"][0]["versions"] == [
        f.version for f in finished.fragments
    ]
    assert main(["replay", folder, "--failures", "--json"]) == 0
    assert [each["what"] for each in json.loads(capsys.readouterr().out)["failures"]].count("Replaced") == 1
    assert main(["replay", folder, "--print", "--event", "merge"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == finished.machine.rounds.merges


def test_atoll_replay_ends_with_1_at_a_difference_and_with_2_without_a_tape(
    finished: Shard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = only(tmp_path / "tape")
    found = records(path)
    at = next(i for i, (record, _) in enumerate(found) if isinstance(record, Computed))
    computed = found[at][0]
    assert isinstance(computed, Computed)
    found[at] = replace(computed, theta=computed.theta ^ 1), b""
    write(path, found)
    assert main(["replay", str(path)]) == 1
    assert f"after the merge of {computed.round}" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert main(["replay", str(path), "--event", "merge"]) == 2
    (tmp_path / "noise").write_bytes(os.urandom(1000))
    assert main(["replay", str(tmp_path / "noise")]) == 2


@pytest.mark.parametrize("content", [b"", b"no tape at all\n" * 99])
def test_what_is_no_tape_cannot_be_printed_either(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for option in ([], ["--print"], ["--print", "--event", "merge"]):
        assert main(["replay", str(path), *option]) == 2
        assert capsys.readouterr() == ("", f"atoll: {path}: no whole record of an event tape\n")


def test_the_tapes_of_all_shards_together_are_checked_against_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = build_layout(MODEL, P, 2)
    shards = []
    for s in range(2):
        shard = Shard(tmp_path / f"shard-{s}", whole.shard(s), shard=s, shards=2).begin().run(30)
        cut = tuple(shard.fragments)
        shard.run(10)
        shard.tape.close()
        shards.append((shard, cut))
    store = GlobalStore(f"file://{tmp_path}/bucket")
    for step, noise in ((12, 0.0), (13, 1.0)):
        for s, (shard, cut) in enumerate(shards):
            own = slices(shard.layout, cut)
            if "norm" in own:
                own["norm"].theta[0] += noise
            store.save_part(CutPart(step, s, 2, own, tuple(each.version for each in cut)))
        store.complete(step, 2, {})
    tapes = [str(tmp_path / f"shard-{s}") for s in range(2)]
    assert main(["replay", *tapes, "--check", store.uri, "--step", "12"]) == 0
    assert "the same bits in 3 tensors" in capsys.readouterr().out
    assert main(["replay", tapes[0], "--check", store.uri]) == 2
    assert "2 shards" in capsys.readouterr().err
    assert main(["replay", *tapes, "--check", store.uri, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["check"]["differing"] == ["theta norm"]


def test_opening_holds_the_depth_and_the_facts(finished: Shard, tmp_path: Path) -> None:
    opening, _ = records(only(tmp_path / "tape"))[0]
    assert isinstance(opening, Opening) and opening.facts == finished.facts
