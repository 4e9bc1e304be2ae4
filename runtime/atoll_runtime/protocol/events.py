"""What the state machine is told. Times are seconds of one steady clock."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.protocol.identifiers import NO_CUT, CutId, RoundId


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


@dataclass(frozen=True)
class Joined:
    """A host opened a session. The caller has checked that its incarnation is not an old one."""

    unit: str
    incarnation: int
    host: int
    hosts: int
    seeded_step: int
    seed_message: str
    address: str = ""
    """Where other units get this host's snapshots."""


@dataclass(frozen=True)
class Left:
    """A host's session ended."""

    unit: str
    incarnation: int
    host: int


@dataclass(frozen=True)
class Reported:
    """Progress; `steps` and `tokens` are sums of this incarnation."""

    unit: str
    incarnation: int
    host: int
    step: int
    steps: int
    tokens: int
    loss: float
    step_seconds: float
    cursor: int


@dataclass(frozen=True)
class Part:
    """One host's share of its unit's contribution: [start, stop) of the padded fragment."""

    unit: str
    incarnation: int
    host: int
    hosts: int
    round: RoundId
    anchor: int
    steps: int
    tokens: int
    cursor: int
    inner_step: int
    start: int
    stop: int
    padded: int
    trained: int
    """Tokens of this incarnation up to this contribution: it holds the last `tokens` of them."""
    cut: CutId = NO_CUT
    """The newest cut at which the unit had recorded itself."""


@dataclass(frozen=True)
class Ordered:
    """Shard 0 tells this one what it has decided."""

    orders: Orders


@dataclass(frozen=True)
class ShardTold:
    """Another shard tells shard 0 where it is."""

    shard: int
    standing: Standing


@dataclass(frozen=True)
class ShardLeft:
    """Its session ended."""

    shard: int


@dataclass(frozen=True)
class Marked:
    """A host has recorded itself for a cut."""

    unit: str
    incarnation: int
    host: int
    cut: CutId
    trained: int
    """Tokens of this incarnation at that moment."""


@dataclass(frozen=True)
class Audited:
    """What a unit got from the examples of an audit, with the versions of the global model as of `step`."""

    unit: str
    incarnation: int
    step: int
    kind: str
    """Generation of its chips, and shape of its mesh."""
    loss: float


@dataclass(frozen=True)
class CutOrdered:
    """The operator wants a cut of this global step or a later one, that holds all; or shard 0 itself does, at its
    start, for it knows of none that stands."""

    step: int


@dataclass(frozen=True)
class CutEnded:
    """The cut stands in the bucket, of another shard than 0 its part; or it was given up."""

    cut: CutId
    whole: bool
    own: bool = True
    """With what this shard recorded; else with what it had before it lost its journal."""


@dataclass(frozen=True)
class Offered:
    """A host's header: what its part of a contribution is, before the body."""

    part: Part
    seconds: float = 0.0
    """Expected until the body is here; 0 where the host has not sent one yet."""
    round_trip: float = 0.0
    """Seconds to the host and back; 0 where it has not measured that yet."""


@dataclass(frozen=True)
class Received:
    """A part's body is here, and its header with it where that has not come yet."""

    part: Part
    square: float
    """Σ v² of its elements; not finite where one of them is not."""


@dataclass(frozen=True)
class Declined:
    """A part was not taken."""

    part: Part
    why: str


@dataclass(frozen=True)
class Merged:
    """The new fragment is computed, in memory. `time` is Unix seconds."""

    round: RoundId
    time: float


@dataclass(frozen=True)
class MergeFailed:
    """The merge gave no usable fragment."""

    round: RoundId
    reason: str


@dataclass(frozen=True)
class Persisted:
    """The new fragment is on the disk."""

    round: RoundId


@dataclass(frozen=True)
class FinalCut:
    """The final cut stands in the bucket and was read back."""

    uri: str


@dataclass(frozen=True)
class Tick:
    """A timer that `Wake` asked for."""


Event = (
    Joined
    | Left
    | Reported
    | Ordered
    | ShardTold
    | ShardLeft
    | Offered
    | Received
    | Declined
    | Merged
    | MergeFailed
    | Persisted
    | Marked
    | Audited
    | CutOrdered
    | CutEnded
    | FinalCut
    | Tick
)
