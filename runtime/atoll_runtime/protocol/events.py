"""What the state machine is told, besides what hosts say (`messages`). Times are seconds of one steady clock."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from atoll_runtime.protocol.identifiers import NO_CUT, CutId, RoundId
from atoll_runtime.protocol.messages import Audit, Header, Hello, Mark, Part, Report


@dataclass(frozen=True)
class Orders:
    """All that shard 0 has decided for the other shards, as of now: later ones take the place of earlier ones."""

    step: int = 0
    """The run's clock: rounds up to this step are opened."""
    seconds: float = 0.0
    """Of an inner step of the slowest live unit."""
    fastest: float = 0.0
    """Seconds of the shortest step of a live unit."""
    silent: tuple[tuple[str, int], ...] = ()
    """Units, with their incarnations, that are connected and have told of no step for too long: no shard waits for
    them."""
    ending: bool = False
    """The target is reached: the clock stands."""
    cut: CutId = NO_CUT
    """The newest one. Each shard records itself for it when it is told."""
    final: str = ""
    """URI of the final cut once that stands: the run is finished."""


@dataclass(frozen=True)
class Standing:
    """Where another shard is, as it tells shard 0."""

    step: int
    done: bool
    """It has no round in flight and will open none, unless the clock goes on."""
    saved: CutId
    """The newest cut of which its part stands in the bucket."""
    kept: CutId = NO_CUT
    """The newest cut, where its part of that stands and holds all that the shard has merged."""
    idle: bool = False
    """No learner is connected here and no body is held: until one comes, nothing will be merged."""


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


class Ordered(Told, frozen=True):
    """Shard 0 tells this one what it has decided."""

    orders: Orders


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
    | Ordered
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
