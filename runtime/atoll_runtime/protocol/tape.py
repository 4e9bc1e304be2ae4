"""The records of an event tape. They are framed like the journal's.

A tape is a sequence of segments. Each starts with an `Opening`, which holds the whole state, so it can be replayed by
itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec

from atoll_runtime.contract import OuterSpec, RunContract, TapeDepth
from atoll_runtime.protocol.coordinator import Coordinator, Follower
from atoll_runtime.protocol.effects import Effect, Persist, RecordCut
from atoll_runtime.protocol.events import Event
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.frames import checksum
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.rules import COORDINATOR

FORMAT = 21


class TapeError(ValueError):
    """A value that a tape cannot hold, or bytes that are not a tape. The message says which and where."""


@dataclass(frozen=True)
class Facts:
    """What a merge depends on besides its inputs. It is the same for the whole life of a shard."""

    run: str
    uid: str
    shard: int
    shards: int
    layout: Layout
    """The shard's own."""
    outer: dict[str, Any]
    """`OuterSpec` as JSON."""

    @classmethod
    def of(cls, run: RunContract, shard: int, layout: Layout) -> Facts:
        outer = run.outer.model_dump(mode="json", by_alias=True)
        return cls(run.name, run.uid, shard, len(run.shards), layout, outer)

    @cached_property
    def spec(self) -> OuterSpec:
        return OuterSpec.model_validate(self.outer)


class Entry(msgspec.Struct, frozen=True, tag=True):
    """The head of a record."""


class Opening(Entry, frozen=True):
    """The first record of a segment. With depth Contributions its body has Θ, then momentum, of each fragment in
    order."""

    facts: Facts
    depth: TapeDepth
    machine: msgspec.Raw
    """All its fields, with the rounds in flight."""
    versions: tuple[int, ...]
    """Versions of the durable fragments in the body. The machine may be a merge ahead."""
    now: float
    """Of the machine's clock."""
    why: Literal["Started", "Full", "Gap"]
    """The process began; the segment before was full; records were lost before this one."""
    format: int = FORMAT

    def restored(self) -> Syncer:
        """The machine. Raises `TapeError` if it is of another version of this program."""
        kind = Coordinator if self.facts.shard == COORDINATOR else Follower
        try:
            return msgspec.msgpack.decode(self.machine, type=kind)
        except msgspec.MsgspecError as error:
            raise TapeError(f"the machine at the start of a segment: {error}") from error


class Decided(Entry, frozen=True):
    """An event handed to the machine, and what it decided. Durable records are replaced by their checksums."""

    now: float
    event: Event
    decisions: tuple[Effect, ...]


class Share(msgspec.Struct, frozen=True):
    """One host's part of its unit's contribution, as it is merged: the next `size` bytes of the body."""

    unit: str
    host: int
    start: int
    """First element in the padded fragment."""
    size: int


class Contributed(Entry, frozen=True):
    """All that goes into a merge."""

    round: RoundId
    shares: tuple[Share, ...]


class Computed(Entry, frozen=True):
    """The result of a merge: crc32c of the float32 bytes of Θ and momentum."""

    round: RoundId
    theta: int
    momentum: int


AnyEntry = Opening | Decided | Contributed | Computed


def encode(value: object) -> bytes:
    """Raises `TapeError` for a value that msgpack cannot encode."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, TypeError) as error:
        raise TapeError(f"{value!r:.200}: {error}") from error


def decisions(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """The effects with each durable record, which is long, replaced by the crc32c of its encoding."""
    return tuple(
        msgspec.structs.replace(effect, record={"crc32c": checksum(encode(effect.record))})
        if isinstance(effect, Persist | RecordCut)
        else effect
        for effect in effects
    )


def plain(value: object) -> Any:
    """`value` in JSON types, to be read and compared. An object has the name of its class as `kind`."""
    match value:
        case list() | tuple():
            return [plain(each) for each in value]
        case set():
            return sorted((plain(each) for each in value), key=str)
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case Opening():
            return {
                "kind": "Opening",
                **plain({**msgspec.structs.asdict(value), "machine": value.restored()}),
            }
        case msgspec.Struct():
            return {"kind": type(value).__name__, **plain(msgspec.structs.asdict(value))}
    if dataclasses.is_dataclass(value):
        names = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **plain(names)}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
