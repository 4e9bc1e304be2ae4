"""Effects: what the state machine asks for. Times are seconds of one steady clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.messages import Orders, Part, Standing


class Asked(msgspec.Struct, frozen=True, tag=True):
    """An effect, as the event tape stores it."""


class SendPull(Asked, frozen=True):
    """Ask every host of a unit for its part."""

    round: RoundId
    unit: str
    least: int
    """The oldest anchor that a contribution may have."""


class Merge(Asked, frozen=True):
    """Merge these members, in this order (by unit name). Their bodies are here. One part stands for its whole unit."""

    round: RoundId
    members: tuple[Part, ...]


class Release(Asked, frozen=True):
    """Forget the parts that a round asked for, of one unit or of all, and tell the unit, or all, that it is over."""

    round: RoundId
    unit: str | None
    """None means all units but those in `kept`."""
    kept: tuple[str, ...] = ()
    """Units that are left out, because their contributions count in this round or a later one."""

    def of(self, round_id: RoundId, unit: str) -> bool:
        """Whether this unit's part is forgotten."""
        meant = unit not in self.kept if self.unit is None else unit == self.unit
        return meant and round_id == self.round


class Persist(Asked, frozen=True):
    """Write the merged fragment and `record` (the machine's durable state after it) to the disk."""

    round: RoundId
    record: Mapping[str, Any]


class Remember(Asked, frozen=True):
    """Write the machine's record to the disk, as it is at the time of the write. This is done before a cut or the end
    is announced, and before a higher incarnation is welcomed. The record is long, so one write serves all that asked
    before it."""


class Publish(Asked, frozen=True):
    """Tell every connected host of a new version."""

    fragment: int
    version: int
    leasts: dict[str, int] = {}
    """By connected unit, the oldest anchor that its contribution to the fragment's next round may have."""


class Evict(Asked, frozen=True):
    """End the sessions of an incarnation that was replaced."""

    unit: str
    newest: int


class RecordCut(Asked, frozen=True):
    """Fix this shard's state for a cut now (the durable fragments and `record`), and save it in the background."""

    cut: CutId
    record: Mapping[str, Any]


class RememberStep(Asked, frozen=True):
    """Write the run's clock to the disk, before it is announced."""

    step: int


class Tell(Asked, frozen=True):
    """Send news once all that was asked for before is on the disk. Shard 0 tells the other shards, and the learners if
    a cut has begun or the run is finished. Another shard tells shard 0."""

    news: Orders | Standing


class Note(Asked, frozen=True):
    """A line of the event tape."""

    entry: Mapping[str, Any]


class Wake(Asked, frozen=True):
    """Send `Tick` at this time. This replaces the last `Wake`."""

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
