"""What the state machine is told, and what it asks for. Times are seconds of one steady clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class RoundId:
    """One attempt to merge one fragment at one global step."""

    step: int
    fragment: int
    attempt: int
    lineage: str = ""
    """Whose versions: a shard that lost its journal opens the same steps again, with other contents."""

    def __str__(self) -> str:
        again = f" (attempt {self.attempt + 1})" if self.attempt else ""
        return f"step {self.step} of fragment {self.fragment}{again}"


@dataclass(frozen=True, order=True)
class CutId:
    """A consistent cut of the whole run: the global step at which its initiator recorded itself."""

    step: int
    final: bool = False


NO_CUT = CutId(-1)


@dataclass(frozen=True)
class ShardClock:
    """What is known of a shard's progress."""

    step: int
    ending: int
    """0 while it trains, 1 once its target is reached, 2 when no round is in flight after that."""
    goal: str = ""
    """The target that `ending` speaks of: it may change while shards are started anew, one after another."""
    cut: int = 0
    """Global step of the newest cut that it has recorded itself for: where cuts were given up, later than its clock."""


CLOCK_ZERO = ShardClock(0, 0)


@dataclass(frozen=True)
class Joined:
    """A host opened a session. The caller has checked that its incarnation is not an old one."""

    unit: str
    incarnation: int
    host: int
    hosts: int
    seeded_step: int
    seed_message: str
    cut: CutId = NO_CUT
    """The newest cut that the host knows of."""
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
    """One host's share of its unit's contribution: [start, stop) of the padded fragment. As an event: its body is here,
    and its header with it where that has not come yet."""

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
class Heard:
    """What a unit has seen of the other shards' clocks, by shard."""

    unit: str
    clocks: tuple[ShardClock, ...]


@dataclass(frozen=True)
class Marked:
    """A host has recorded itself for a cut: its marker has come through its channel."""

    unit: str
    incarnation: int
    host: int
    cut: CutId
    trained: int
    """Tokens of this incarnation at that moment."""


@dataclass(frozen=True)
class CutOrdered:
    """The operator wants a cut: the run is about to be suspended, and no unit is left to carry a marker. Or the shard
    itself does, at its start, for it knows of none that stands."""

    cut: CutId


@dataclass(frozen=True)
class CutEnded:
    """The cut stands in the bucket, or was given up."""

    cut: CutId
    whole: bool


@dataclass(frozen=True)
class Offered:
    """A host's header: what its part of a contribution is, before the body."""

    part: Part
    seconds: float = 0.0
    """Expected until the body is here; 0 where the host has not sent one yet."""


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
    | Heard
    | Part
    | Offered
    | Declined
    | Merged
    | MergeFailed
    | Persisted
    | Marked
    | CutOrdered
    | CutEnded
    | FinalCut
    | Tick
)


@dataclass(frozen=True)
class Member:
    """A unit's whole contribution to a round."""

    unit: str
    incarnation: int
    weight: float
    steps: int
    tokens: int
    anchor: int
    cursor: int
    inner_step: int
    trained: int
    """Tokens of the incarnation up to this contribution."""


@dataclass(frozen=True)
class SendPull:
    """Ask every host of a unit for its part."""

    round: RoundId
    unit: str
    least: int
    """Least version that a contribution may be taken against."""


@dataclass(frozen=True)
class Exclude:
    """Membership of a round is frozen: tell every other unit to go on without it."""

    round: RoundId
    members: tuple[str, ...]


@dataclass(frozen=True)
class Merge:
    """Every member's body is here: merge these, in this order (by unit name)."""

    round: RoundId
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Release:
    """Forget the held parts of a round, of one unit or of all, and tell that unit, or all, that it is over."""

    round: RoundId
    unit: str | None


@dataclass(frozen=True)
class Persist:
    """Write the merged fragment and `record` (the machine's durable state after it) to the disk."""

    round: RoundId
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Remember:
    """Write `record` to the disk before what follows it: a cut that begins, or the end."""

    record: Mapping[str, Any]


@dataclass(frozen=True)
class RememberJoin:
    """A higher incarnation was seen: the machine's record, as it is by then, is on the disk before the unit is
    welcomed. It is long, and one serves all joins before it."""


@dataclass(frozen=True)
class Publish:
    """Tell every connected host of a new version."""

    fragment: int
    version: int
    needed: tuple[str, ...] = ()
    """Units that can contribute against no older one: it holds a contribution of theirs, or they have none yet."""


@dataclass(frozen=True)
class Evict:
    """End the sessions of an incarnation that was replaced."""

    unit: str
    newest: int


@dataclass(frozen=True)
class RecordCut:
    """Fix this shard's state for a cut, now: the durable fragments and `record`; save it in the background."""

    cut: CutId
    record: Mapping[str, Any]


@dataclass(frozen=True)
class SendMarkers:
    """Pass the marker of a cut to every connected host, before anything that comes after."""

    cut: CutId


@dataclass(frozen=True)
class SendClock:
    """Tell every connected host of this shard's clock; they pass it on to the other shards."""

    clock: ShardClock


@dataclass(frozen=True)
class StopAll:
    """The run is finished: every learner leaves."""

    step: int


@dataclass(frozen=True)
class Note:
    """A line of the event tape."""

    entry: Mapping[str, Any]


@dataclass(frozen=True)
class Wake:
    """Send `Tick` at this time; replaces the last one."""

    at: float


Effect = (
    SendPull
    | Exclude
    | Merge
    | Release
    | Persist
    | Remember
    | RememberJoin
    | Publish
    | Evict
    | RecordCut
    | SendMarkers
    | SendClock
    | StopAll
    | Note
    | Wake
)
