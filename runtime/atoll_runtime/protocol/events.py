"""Events of the state machine, besides the messages of hosts and of shard 0 (`messages`).

Times are seconds of one steady clock.
"""

from __future__ import annotations

import msgspec

from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.messages import Audit, Header, Hello, Orders, Part, Report, Standing


class Told(msgspec.Struct, frozen=True, tag=True):
    """An event, as the event tape stores it."""


class Left(Told, frozen=True):
    """A host's session ended."""

    unit: str
    incarnation: int
    host: int


class Said(Told, frozen=True):
    """Host 0 speaks for its unit."""

    unit: str
    incarnation: int
    message: Report | Audit


class LinkTold(Told, frozen=True):
    """A host's link carries one of `turn` rounds of each fragment, more than one."""

    unit: str
    incarnation: int
    host: int
    turn: float


class ShardTold(Told, frozen=True):
    """Another shard tells shard 0 its standing."""

    shard: int
    standing: Standing


class ShardLeft(Told, frozen=True):
    """The session of another shard with shard 0 ended."""

    shard: int


class CutOrdered(Told, frozen=True):
    """The operator wants a cut of this global step or a later one that holds every merge. Shard 0 also wants one when
    it starts and knows of no complete cut."""

    step: int


class CutEnded(Told, frozen=True):
    """A cut is no longer under way in this shard: it is whole in the bucket, or was given up."""

    cut: CutId
    whole: bool
    """Shard 0: the cut is complete. Another shard: its part is saved."""
    own: bool = True
    """It holds what this shard recorded, not what the shard had before it lost its journal."""


class Received(Told, frozen=True):
    """A part's body is here. The event also stands for its header, if that has not come yet."""

    part: Part
    square: float
    """Σ v² of its elements; not finite if an element is not."""


class Declined(Told, frozen=True):
    """A part was not taken."""

    part: Part
    why: str


class Merged(Told, frozen=True):
    """The new fragment is computed and in memory."""

    round: RoundId


class MergeFailed(Told, frozen=True):
    """The merge did not give a usable fragment."""

    round: RoundId
    reason: str


class Persisted(Told, frozen=True):
    """The new fragment is on the disk."""

    round: RoundId


class FinalCut(Told, frozen=True):
    """The final cut is complete in the bucket and was read back."""

    uri: str


class Tick(Told, frozen=True):
    """A timer that `Wake` asked for."""


Event = (
    Hello
    | Left
    | Said
    | LinkTold
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
