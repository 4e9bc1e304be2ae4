"""What the state machine is told, besides what hosts and shard 0 say (`messages`).

Times are seconds of one steady clock.
"""

from __future__ import annotations

import msgspec

from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.messages import Audit, Header, Hello, Mark, Orders, Part, Report, Standing


class Told(msgspec.Struct, frozen=True, tag=True):
    """An event, as it stands on the event tape."""


class Left(Told, frozen=True):
    """A host's session ended."""

    unit: str
    incarnation: int
    host: int


class Said(Told, frozen=True):
    """Host 0 speaks for its unit."""

    unit: str
    incarnation: int
    message: Report | Mark | Audit


class ShardTold(Told, frozen=True):
    """Another shard tells shard 0 where it is."""

    shard: int
    standing: Standing


class ShardLeft(Told, frozen=True):
    """Its session ended."""

    shard: int


class CutOrdered(Told, frozen=True):
    """The operator wants a cut of this global step or a later one, that holds all; or shard 0 itself does, at its
    start, for it knows of none that stands."""

    step: int


class CutEnded(Told, frozen=True):
    """The cut stands in the bucket, of another shard than 0 its part; or it was given up."""

    cut: CutId
    whole: bool
    own: bool = True
    """With what this shard recorded; else with what it had before it lost its journal."""


class Received(Told, frozen=True):
    """A part's body is here, and its header with it where that has not come yet."""

    part: Part
    square: float
    """Σ v² of its elements; not finite where one of them is not."""


class Declined(Told, frozen=True):
    """A part was not taken."""

    part: Part
    why: str


class Merged(Told, frozen=True):
    """The new fragment is computed, in memory. `time` is Unix seconds."""

    round: RoundId
    time: float


class MergeFailed(Told, frozen=True):
    """The merge gave no usable fragment."""

    round: RoundId
    reason: str


class Persisted(Told, frozen=True):
    """The new fragment is on the disk."""

    round: RoundId


class FinalCut(Told, frozen=True):
    """The final cut stands in the bucket and was read back."""

    uri: str


class Tick(Told, frozen=True):
    """A timer that `Wake` asked for."""


Event = (
    Hello
    | Left
    | Said
    | Header
    | Orders
    | ShardTold
    | ShardLeft
    | Received
    | Declined
    | Merged
    | MergeFailed
    | Persisted
    | CutOrdered
    | CutEnded
    | FinalCut
    | Tick
)
