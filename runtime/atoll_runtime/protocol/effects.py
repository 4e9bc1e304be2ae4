"""What the state machine asks for. Times are seconds of one steady clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.messages import Orders, Part, Standing


class Asked(msgspec.Struct, frozen=True, tag=True):
    """An effect, as it stands on the event tape."""


class SendPull(Asked, frozen=True):
    """Ask every host of a unit for its part."""

    round: RoundId
    unit: str
    least: int
    """Least version that a contribution may be taken against."""


class Merge(Asked, frozen=True):
    """Every member's body is here: merge these, in this order (by unit name). One part speaks for its unit's."""

    round: RoundId
    members: tuple[Part, ...]


class Release(Asked, frozen=True):
    """Forget the parts that a round asked for, of one unit or of all, and tell that unit, or all, that it is over."""

    round: RoundId
    unit: str | None
    kept: tuple[str, ...] = ()
    """Where it is of all: units that are not meant, for their contributions count in this round or a later one."""

    def of(self, round_id: RoundId, unit: str) -> bool:
        """Whether it is of this unit's part."""
        meant = unit not in self.kept if self.unit is None else unit == self.unit
        return meant and round_id == self.round


class Persist(Asked, frozen=True):
    """Write the merged fragment and `record` (the machine's durable state after it) to the disk."""

    round: RoundId
    record: Mapping[str, Any]


class Remember(Asked, frozen=True):
    """Write the machine's record, as it is by then, to the disk: before a cut or the end is told, and before a unit of
    a higher incarnation is welcomed. It is long, and one serves all that asked for it before."""


class Publish(Asked, frozen=True):
    """Tell every connected host of a new version."""

    fragment: int
    version: int
    needed: tuple[str, ...] = ()
    """Units that can contribute against no older one: it holds a contribution of theirs, or they have none yet."""


class Evict(Asked, frozen=True):
    """End the sessions of an incarnation that was replaced."""

    unit: str
    newest: int


class RecordCut(Asked, frozen=True):
    """Fix this shard's state for a cut, now: the durable fragments and `record`; save it in the background."""

    cut: CutId
    record: Mapping[str, Any]


class RememberStep(Asked, frozen=True):
    """Write the run's clock to the disk, before it is announced."""

    step: int


class Tell(Asked, frozen=True):
    """Shard 0: tell the other shards, and learners where a cut has begun or the run is finished, once all that stands
    before is on the disk. Another shard: tell shard 0."""

    news: Orders | Standing


class Note(Asked, frozen=True):
    """A line of the event tape."""

    entry: Mapping[str, Any]


class Wake(Asked, frozen=True):
    """Send `Tick` at this time; replaces the last one."""

    at: float


Effect = (
    SendPull
    | Merge
    | Release
    | Persist
    | Remember
    | Publish
    | Evict
    | RecordCut
    | RememberStep
    | Tell
    | Note
    | Wake
)


def note(what: str, **facts: object) -> Note:
    """A line of the event tape."""
    return Note({"event": what, **facts})
