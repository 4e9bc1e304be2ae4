"""The event tape: what stands in it, and its frames.

A tape is a row of segments. Each starts with an `Opening`, which holds the whole state, so each can be replayed by
itself. A record is a frame (magic, crc32c of the rest, lengths), a head, and raw bytes.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from atoll_runtime.contract import Codec, MergeRule, RunContract, TapeDepth
from atoll_runtime.protocol.effects import Effect, Member
from atoll_runtime.protocol.encoding import TapeError, decode, packed
from atoll_runtime.protocol.events import Event
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.frames import checksum, take
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer

FORMAT = 7
MAGIC = b"ATT1"


@dataclass(frozen=True)
class Facts:
    """What a merge depends on besides its inputs; the same for a shard's whole life."""

    run: str
    uid: str
    shard: int
    shards: int
    layout: Layout
    """The shard's own."""
    merge: MergeRule
    learning_rate: float
    """η."""
    momentum: float
    """μ."""
    codec: Codec
    guard: bool

    @classmethod
    def of(cls, run: RunContract, shard: int, layout: Layout) -> Facts:
        outer = run.outer
        return cls(
            run.name,
            run.uid,
            shard,
            len(run.shards),
            layout,
            outer.merge,
            outer.learning_rate,
            outer.momentum,
            outer.codec,
            outer.guard,
        )


@dataclass(frozen=True)
class Opening:
    """Head of a segment. With depth Contributions its body is Θ, then momentum, of each fragment in turn."""

    facts: Facts
    depth: TapeDepth
    machine: Syncer
    """Every field, with the rounds in flight."""
    versions: tuple[int, ...]
    """Of the durable fragments in the body; the machine may be a merge ahead."""
    now: float
    """Seconds of the machine's clock."""
    time: float
    """Unix seconds, at the same moment."""
    why: Literal["Started", "Full", "Gap"]
    """The process began; the segment before was full; records were lost before this one."""
    format: int = FORMAT


@dataclass(frozen=True)
class Decided:
    """An event handed to the machine, and what it decided; durable records stand by their checksums alone."""

    now: float
    event: Event
    decisions: tuple[Effect, ...]


@dataclass(frozen=True)
class Share:
    """One host's part of its unit's contribution, as it is merged; `size` bytes of the body, in turn."""

    unit: str
    host: int
    start: int
    """First element, of the padded fragment."""
    size: int


@dataclass(frozen=True)
class Contributed:
    """All that goes into a merge."""

    round: RoundId
    members: tuple[Member, ...]
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Computed:
    """What came out of a merge: crc32c of the float32 bytes of Θ and momentum."""

    round: RoundId
    theta: int
    momentum: int


@dataclass(frozen=True)
class Closed:
    """The process ended in order: version and crc32c of Θ and of momentum of each durable fragment."""

    versions: tuple[int, ...]
    theta: tuple[int, ...]
    momentum: tuple[int, ...]


Record = Opening | Decided | Contributed | Computed | Closed


@dataclass(frozen=True)
class Stored:
    """A record as read, where it starts, and where the next one does."""

    record: Record
    body: memoryview
    start: int
    end: int


def decisions(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """The effects with each durable record, which is long, replaced by the crc32c of its encoding."""

    def short(effect: Any) -> Effect:
        if hasattr(effect, "record"):
            effect = dataclasses.replace(effect, record={"crc32c": checksum(packed(effect.record))})
        return effect  # type: ignore[no-any-return]

    return tuple(short(effect) for effect in effects)


def read(tape: bytes | mmap.mmap, name: str) -> Iterator[Stored]:
    """Every record of a segment; ends before a torn tail, which is what lies behind the last `end`.

    Raises:
        TapeError: a damaged record with whole ones behind it, or a head that is not known here.
    """
    view, at = memoryview(tape), 0
    while (found := take(MAGIC, view, at)) is not None:
        head, body, end = found
        try:
            record = decode(bytes(head))
        except (TapeError, msgspec.DecodeError) as error:
            raise TapeError(f"{name}: byte {at}: {error}") from error
        if not isinstance(record, Record):
            raise TapeError(f"{name}: byte {at}: {type(record).__name__} is no record of a tape")
        yield Stored(record, body, at, end)
        at = end
    behind = at
    while (behind := tape.find(MAGIC, behind + 1)) >= 0:
        if take(MAGIC, view, behind) is not None:
            raise TapeError(f"{name}: the record at byte {at} is damaged, whole ones follow from {behind}")
