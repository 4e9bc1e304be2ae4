"""Drives the machine with recorded events, and compares its decisions and the results of its merges."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atoll_runtime.contract import TapeDepth
from atoll_runtime.merge.gradients import scan
from atoll_runtime.payloads import Cut, HostPart, MergeError
from atoll_runtime.protocol.events import MergeFailed, Persisted
from atoll_runtime.protocol.frames import checksum
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.tape import (
    Computed,
    Contributed,
    Decided,
    Facts,
    Opening,
    TapeError,
    decisions,
    plain,
)
from atoll_runtime.replay.reader import Stored, read
from atoll_runtime.syncer.arrays import NumpyArrays
from atoll_runtime.syncer.state import Version


@dataclass(frozen=True)
class Difference:
    """The first place where the re-run differs from the recording."""

    segment: str
    byte: int
    """Offset of the record in the segment."""
    what: str
    recorded: object
    found: object

    def __str__(self) -> str:
        return f"{self.segment}, byte {self.byte}: {self.what}: recorded {self.recorded}, found {self.found}"


@dataclass
class Replay:
    """The result of a re-run. Up to a difference, everything is identical to the recording."""

    facts: Facts
    depth: TapeDepth
    segments: int = 0
    gaps: int = 0
    """How often the recorder fell behind. Events meanwhile are not on the tape."""
    restarts: int = 0
    """How often the syncer's process restarted."""
    events: int = 0
    decisions: int = 0
    merges: int = 0
    """Merges that were computed again with the same bits."""
    torn: int = 0
    """Bytes after the last whole records, left by processes that were killed."""
    seconds: float = 0.0
    """From the first record to the last."""
    step: int = 0
    units: dict[str, int] = field(default_factory=dict)
    """Incarnation of each unit."""
    versions: tuple[int, ...] = ()
    """Newest durable version of each fragment."""
    held: list[Version] = field(default_factory=list)
    """The newest versions. Empty if the tape has no contributions."""
    wanted: list[Version] = field(default_factory=list)
    """The versions of the cut. Empty if the run never had them."""
    difference: Difference | None = None


def replay(path: Path, cut: Cut | None = None) -> Replay:
    """Re-runs a tape: a folder of segments, or one segment. Ends at the first difference.

    Args:
        cut: `wanted` is the state when its versions were the newest durable ones.

    Raises:
        TapeError: there is no tape, it is damaged, another version of this program wrote it, or the cut is of another
            number of shards.
        OSError: the tape cannot be read.
    """
    player: Player | None = None
    for stored in read(path):
        player = player or Player(stored, cut)
        player.play(stored)
        if player.difference is not None:
            break
    assert player is not None
    player.end()
    return player


class Player(Replay):
    """A shard in the state of the tape so far. Merges are computed by the syncer's own code."""

    def __init__(self, first: Stored, cut: Cut | None) -> None:
        opening = first.entry
        assert isinstance(opening, Opening)
        super().__init__(opening.facts, opening.depth)
        if cut is not None and cut.shards != self.facts.shards:
            raise TapeError(
                f"the checkpoint of step {cut.step} is of {cut.shards} shards, the tape of {self.facts.shards}"
            )
        self._cut, self._began = cut, opening.now
        self._machine: Syncer
        self._arrays = NumpyArrays(self.facts.spec, self.facts.layout)
        self._fresh: dict[RoundId, Version | None] = {}
        """Merges that are not durable yet. None: the merge gave no usable fragment."""
        self._known: dict[tuple[int, int], tuple[int, int]] = {}
        """Checksums by fragment and version, also from before a restart or a gap."""
        self._last = first
        """The record that was played last, or is being played."""

    def play(self, stored: Stored) -> None:
        """Plays a record. Sets `difference` if the re-run differs from it."""
        before, self._last = self._last, stored
        match stored.entry:
            case Opening() as opening:
                self._open(opening, stored.body, before.left if self.segments else 0)
            case Decided() as decided:
                self._decide(decided)
            case Contributed() as contributed:
                self._contribute(contributed, stored.body)
            case Computed(round_id, theta, momentum):
                self._compute(round_id, (theta, momentum))

    def end(self) -> None:
        """Ends the re-run after the last record."""
        self._arrays.close()
        if self.difference is None:
            self.torn += self._last.left

    def _open(self, opening: Opening, body: bytes, torn: int) -> None:
        machine = opening.restored()
        if opening.why == "Full" and torn:
            raise TapeError(f"the segment before {self._last.segment} is damaged in its last {torn} bytes")
        self.torn += torn
        if opening.why == "Full" and self.segments:
            self._compare("the machine at the start of the segment", machine, self._machine)
        if opening.facts.uid != self.facts.uid:
            self._known.clear()
        self.restarts += opening.why == "Started" and self.segments > 0
        self.gaps += opening.why == "Gap"
        self.segments += 1
        self.facts, self.depth = opening.facts, opening.depth
        self._machine = machine
        self._fresh.clear()
        self._arrays.close()
        self._arrays = NumpyArrays(self.facts.spec, self.facts.layout)
        self.held = snapshot(opening, body) if opening.depth == "Contributions" else []
        for p, held in enumerate(self.held):
            found = sums(held)
            what = f"checksums of Θ and momentum of fragment {p}, version {held.version}"
            self._compare(what, found, self._known.setdefault((p, held.version), found))
        self._stand(opening.versions)

    def _decide(self, decided: Decided) -> None:
        event, machine = decided.event, self._machine
        what = f"decisions about {plain(event)}"
        try:
            effects = machine.handle(event, decided.now)
        except Exception as error:  # an event that the machine never had may cause any error
            self._differ(what, plain(decided.decisions), f"{type(error).__name__}: {error}")
            return
        self._compare(what, decided.decisions, decisions(effects))
        self.events += 1
        self.decisions += len(effects)
        self.step = machine.step
        self.units = {name: unit.incarnation for name, unit in sorted(machine.units.items())}
        self.seconds = decided.now - self._began
        match event:
            case MergeFailed(round_id, reason) if self.depth == "Contributions":
                if self._fresh.pop(round_id, None) is not None:
                    self._differ(f"the merge of {round_id}", reason, "a merge that gives a usable fragment")
            case Persisted(round_id):
                self._persist(round_id)

    def _contribute(self, contributed: Contributed, body: bytes) -> None:
        round_id, facts, at = contributed.round, self.facts, 0
        fragment, parts = facts.layout.fragments[round_id.fragment], {}
        for share in contributed.shares:
            part = memoryview(body[at : at + share.size])  # a copy, because the tape's bytes are not aligned
            scanned = scan(fragment, part, facts.spec.codec, share.start)
            parts[share.unit, share.host] = HostPart(share.start, part, scanned)
            at += share.size
        frozen, old = self._machine.rounds.in_flight.get(round_id), self.held[round_id.fragment]
        if frozen is None:
            self._differ(f"the merge of {round_id}", "contributions", "no such round")
            return
        try:
            self._fresh[round_id] = self._arrays.merge(fragment, round_id.step, frozen.members, parts, old)
        except MergeError:
            self._fresh[round_id] = None

    def _compute(self, round_id: RoundId, recorded: tuple[int, int]) -> None:
        held = self._fresh.get(round_id)
        found = None if held is None else sums(held)
        self._compare(f"checksums of Θ and momentum after the merge of {round_id}", recorded, found)
        self._known[round_id.fragment, round_id.step] = recorded
        self.merges += self.difference is None

    def _persist(self, round_id: RoundId) -> None:
        if self.depth == "Contributions":
            held = self._fresh.pop(round_id, None)
            if held is None:
                self._differ(f"the merge of {round_id}", "a durable version", "no contributions to it")
                return
            self.held[round_id.fragment] = held
        versions = list(self.versions)
        versions[round_id.fragment] = round_id.step
        self._stand(tuple(versions))

    def _stand(self, versions: tuple[int, ...]) -> None:
        self.versions = versions
        start = self.facts.shard * len(versions)  # a cut lists them shard by shard
        if self._cut is not None and versions == self._cut.versions[start : start + len(versions)]:
            self.wanted = list(self.held)

    def _compare(self, what: str, recorded: object, found: object) -> None:
        """Compares in a form in which NaN equals itself and sets are ordered."""
        a, b = plain(recorded), plain(found)
        if a != b:
            self._differ(what, a, b)

    def _differ(self, what: str, recorded: object, found: object) -> None:
        if self.difference is None:
            self.difference = Difference(self._last.segment, self._last.start, what, recorded, found)


def snapshot(opening: Opening, body: bytes) -> list[Version]:
    """Every fragment's version at the start of a segment."""
    flat, at, found = np.frombuffer(body, np.float32), 0, []
    for fragment, version in zip(opening.facts.layout.fragments, opening.versions, strict=True):
        theta, momentum = flat[at : at + 2 * fragment.size].reshape(2, fragment.size)
        at += 2 * fragment.size
        found.append(Version.make(version, theta, momentum, opening.facts.spec.codec))
    return found


def sums(held: Version) -> tuple[int, int]:
    """crc32c of Θ and of momentum."""
    return checksum(held.theta.data), checksum(held.momentum.data)
