"""Drives the machine with recorded events, and compares what it decides and what its merges give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atoll_runtime.contract import TapeDepth
from atoll_runtime.payloads import MergeError
from atoll_runtime.protocol.effects import Member, Merge
from atoll_runtime.protocol.encoding import TapeError, encode, plain
from atoll_runtime.protocol.events import MergeFailed, Persisted
from atoll_runtime.protocol.failures import Happening, Watch
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.tape import (
    FORMAT,
    Closed,
    Computed,
    Contributed,
    Decided,
    Facts,
    Opening,
    Stored,
    decisions,
    read,
)
from atoll_runtime.replay.arrays import Held, arrays, recompute, sums
from atoll_runtime.replay.folder import load, nothing_whole


@dataclass(frozen=True)
class Difference:
    """The first place where the re-run does not do what was recorded."""

    segment: str
    byte: int
    """Where the record stands in the segment."""
    what: str
    recorded: object
    found: object

    def __str__(self) -> str:
        return f"{self.segment}, byte {self.byte}: {self.what}: recorded {self.recorded}, found {self.found}"


@dataclass
class Replay:
    """What a re-run found. Up to a difference, all is identical to the recording."""

    facts: Facts
    depth: TapeDepth
    segments: int = 0
    gaps: int = 0
    """Times that the recorder fell behind; what happened meanwhile is not on the tape."""
    restarts: int = 0
    """Times that the syncer's process began again."""
    events: int = 0
    decisions: int = 0
    merges: int = 0
    """Computed again, to the same bits."""
    torn: int = 0
    """Bytes behind the last whole records, of processes that were killed."""
    seconds: float = 0.0
    """From the first record to the last."""
    step: int = 0
    units: dict[str, int] = field(default_factory=dict)
    """Incarnation of each."""
    versions: tuple[int, ...] = ()
    """Newest durable version of each fragment."""
    trace: list[Happening] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    """The newest versions; empty without contributions on the tape."""
    wanted: list[Held] = field(default_factory=list)
    """Those that were asked for with `at`; empty when the run was never there."""
    difference: Difference | None = None


def replay(path: Path, at: Sequence[int] | None = None) -> Replay:
    """Re-runs a tape: a folder of segments, or one segment. Ends at the first difference.

    Args:
        at: versions, one for each fragment: `wanted` is the state when they were the newest durable ones.

    Raises:
        TapeError: no tape, a damaged one, or one of another version of this program.
        OSError: it cannot be read.
    """
    player: Player | None = None
    for name, tape in load(path):
        end = 0
        for stored in read(tape, name):
            if isinstance(stored.record, Opening) != (stored.start == 0):
                raise TapeError(f"{name}: byte {stored.start}: a segment starts with an Opening, and has one")
            if isinstance(stored.record, Opening) and player is None:
                player = Player(stored.record, None if at is None else tuple(at))
            assert player is not None
            player.play(stored, name)
            end = stored.end
            if player.replay.difference is not None:
                return player.replay
        if player is not None:
            player.torn = len(tape) - end
            player.replay.torn += player.torn
    if player is None:
        raise nothing_whole(path)
    return player.replay


class Player:
    """A shard as the tape has it so far."""

    def __init__(self, first: Opening, at: tuple[int, ...] | None) -> None:
        self.replay = Replay(first.facts, first.depth)
        self.torn = 0
        """Bytes behind the last whole record of the segment before."""
        self._watch, self._at, self._began = Watch(self.replay.trace), at, first.time
        self._machine = first.machine
        self._offset = 0.0
        """From the machine's clock to seconds since the tape began."""
        self._frozen: dict[RoundId, tuple[Member, ...]] = {}
        self._fresh: dict[RoundId, Held | None] = {}
        """Merges that are not durable; None for one that failed."""
        self._known: dict[tuple[int, int], tuple[int, int]] = {}
        """Checksums of Θ and momentum by fragment and version."""
        self._segment, self._byte = "", 0

    def play(self, stored: Stored, segment: str) -> None:
        """Re-runs a record; a difference goes into `replay`."""
        self._segment, self._byte = segment, stored.start
        match stored.record:
            case Opening() as opening:
                self._open(opening, stored.body)
            case Decided() as decided:
                self._decide(decided)
            case Contributed() as contributed:
                self._contribute(contributed, stored.body)
            case Computed(round_id, theta, momentum):
                self._compute(round_id, (theta, momentum))
            case Closed() as closed:
                self._close(closed)

    def _open(self, opening: Opening, body: memoryview) -> None:
        if opening.format != FORMAT:
            raise TapeError(f"{self._segment}: format {opening.format}, this version reads {FORMAT}")
        if opening.why == "Full":
            if self.torn:
                raise TapeError(
                    f"the segment before {self._segment} is damaged in its last {self.torn} bytes"
                )
            if self.replay.segments:
                self._compare("the machine at the start of the segment", opening.machine, self._machine)
        if opening.facts.uid != self.replay.facts.uid:
            self._known.clear()
        restarted = opening.why == "Started" and self.replay.segments > 0
        self.replay.restarts += restarted
        self.replay.gaps += opening.why == "Gap"
        self.replay.segments += 1
        self.replay.facts, self.replay.depth = opening.facts, opening.depth
        self._machine, self._offset = opening.machine, opening.time - self._began - opening.now
        self._frozen.clear()
        self._fresh.clear()
        self.replay.held = list(arrays(opening, body)) if opening.depth == "Contributions" else []
        for p, held in enumerate(self.replay.held):
            found = sums(held)
            self._compare(
                f"checksums of Θ and momentum of fragment {p}, version {held.version}",
                found,
                self._known.setdefault((p, held.version), found),
            )
        self._watch.begin(opening.machine, self._passed(opening.now), restarted=restarted)
        self._stand(opening.versions)

    def _decide(self, decided: Decided) -> None:
        event, replay = decided.event, self.replay
        what = f"decisions about {plain(event)}"
        try:
            effects = self._machine.handle(event, decided.now)
        except Exception as error:  # whatever a machine does that is told what it never was told
            self._differ(what, plain(decided.decisions), f"{type(error).__name__}: {error}")
            return
        self._compare(what, decided.decisions, decisions(effects))
        replay.events += 1
        replay.decisions += len(effects)
        replay.step = self._machine.step
        replay.units = {name: unit.incarnation for name, unit in sorted(self._machine.units.items())}
        self._watch.see(event, effects, self._machine, decided.now, self._passed(decided.now))
        for effect in effects:
            if isinstance(effect, Merge):
                self._frozen[effect.round] = effect.members
        match event:
            case MergeFailed(round_id, reason) if replay.depth == "Contributions":
                if self._fresh.pop(round_id, None) is not None:
                    self._differ(f"the merge of {round_id}", reason, "a merge that gives a usable fragment")
            case Persisted(round_id):
                self._persist(round_id)

    def _contribute(self, contributed: Contributed, body: memoryview) -> None:
        round_id = contributed.round
        members = self._frozen.get(round_id, contributed.members)  # frozen before this segment, else
        self._compare(f"members of the merge of {round_id}", contributed.members, members)
        try:
            held = recompute(self.replay.facts, self.replay.held[round_id.fragment], contributed, body)
        except MergeError:
            self._fresh[round_id] = None
        else:
            self._fresh[round_id] = held

    def _compute(self, round_id: RoundId, recorded: tuple[int, int]) -> None:
        held = self._fresh.get(round_id)
        found = None if held is None else sums(held)
        self._compare(f"checksums of Θ and momentum after the merge of {round_id}", recorded, found)
        self._known[round_id.fragment, round_id.step] = recorded
        self.replay.merges += 1

    def _persist(self, round_id: RoundId) -> None:
        versions = list(self.replay.versions)
        versions[round_id.fragment] = round_id.step
        if self.replay.depth == "Contributions":
            held = self._fresh.pop(round_id, None)
            if held is None:
                self._differ(f"the merge of {round_id}", "a durable version", "no contributions to it")
                return
            self.replay.held[round_id.fragment] = held
        self._stand(tuple(versions))

    def _close(self, closed: Closed) -> None:
        self._compare("versions at the end", closed.versions, self.replay.versions)
        found = [sums(held) for held in self.replay.held]
        if found:
            recorded = list(zip(closed.theta, closed.momentum, strict=True))
            self._compare("checksums of Θ and momentum at the end", recorded, found)

    def _stand(self, versions: tuple[int, ...]) -> None:
        self.replay.versions = versions
        if versions == self._at:
            self.replay.wanted = list(self.replay.held)

    def _passed(self, now: float) -> float:
        self.replay.seconds = now + self._offset
        return self.replay.seconds

    def _compare(self, what: str, recorded: object, found: object) -> None:
        if encode(recorded) != encode(found):  # so that NaN is itself, and 1 is not 1.0
            self._differ(what, plain(recorded), plain(found))

    def _differ(self, what: str, recorded: object, found: object) -> None:
        if self.replay.difference is None:
            self.replay.difference = Difference(self._segment, self._byte, what, recorded, found)
