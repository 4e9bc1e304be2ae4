"""Messages of hosts and shards on a session that are events as they come. Their types refuse what no host can send.

Sums run since the incarnation started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from atoll_runtime.protocol.identifiers import (
    LAST_STEP,
    MOST_TOKENS,
    NO_CUT,
    Count,
    CutId,
    Figure,
    RoundId,
    Step,
    Tokens,
)
from atoll_runtime.protocol.linkmeter import LinkReading
from atoll_runtime.protocol.rules import TRANSFER_SECONDS

LONGEST_STEP = 86400.0
"""Most seconds of an inner step."""
MOST_LOSS = 1e39
"""More than any float32. A learner whose loss is not finite ends without a report."""
SEED_MESSAGE = 200
"""Most characters of a host's message about its seed, which is in every record of the journal."""
LONGEST_ADDRESS = 300
"""Most characters of a host's name and port."""
LONGEST_KIND = 400
"""Most characters of `Audit.kind`."""
MOST_TURN = 1000.0
"""The largest `Turn`."""

Transfer = Annotated[float, msgspec.Meta(ge=0, le=TRANSFER_SECONDS)]
"""Seconds."""
Turn = Annotated[float, msgspec.Meta(ge=0, le=MOST_TURN)]
"""A link carries one of this many rounds of each fragment, with fetches; 0 if it carries all."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Anything but the chunks of a body."""


class Hello(Message, frozen=True, tag=True):
    """A host's first message to a shard: who it is."""

    protocol: int
    run_uid: str
    unit: str
    incarnation: Step
    host: int
    hosts: int
    fingerprint: str
    codec: str
    seeded_step: Step
    seed_message: Annotated[str, msgspec.Meta(max_length=SEED_MESSAGE)]
    address: Annotated[str, msgspec.Meta(max_length=LONGEST_ADDRESS)] = ""
    """Where this host serves its snapshots to other units; empty: nowhere."""


class Beginning(msgspec.Struct, frozen=True):
    """How an incarnation came to its first step, as its host 0 saw it."""

    joined: Figure
    """Unix seconds at which all hosts were one mesh."""
    stepped: Figure
    """Unix seconds at which the first step had ended."""
    compiling: Figure
    """Seconds between the two in which programs were compiled or loaded."""
    compiled: Count
    """Programs compiled."""
    loaded: Count
    """Programs loaded from the cache."""


class Report(Message, frozen=True, tag=True):
    """Progress of a unit after each step, coalesced. To shard 0. Sums run since this incarnation started."""

    step: Step
    """The unit's own inner step."""
    steps: Step
    tokens: Tokens
    loss: Annotated[float, msgspec.Meta(ge=-MOST_LOSS, le=MOST_LOSS)]
    step_seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_STEP)]
    """0 if not known."""
    beginning: Beginning | None = None
    link: LinkReading = LinkReading()
    """The link of host 0."""


class Audit(Message, frozen=True, tag=True):
    """A unit's result for the examples of an audit, with the versions of the global model as of `step`. To shard 0."""

    step: Step
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_KIND)]
    """Generation of its chips, shape of its mesh, codec of versions, and compiler. Only results of one kind agree."""
    loss: float


@dataclass(frozen=True)
class Part:
    """One host's share of its unit's contribution: [start, stop) of the padded fragment."""

    unit: str
    incarnation: Step
    host: Count
    hosts: int
    round: RoundId
    anchor: Step
    steps: Annotated[int, msgspec.Meta(ge=1, le=LAST_STEP)]
    tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    cursor: Tokens
    inner_step: Step
    start: int
    stop: int
    padded: int
    trained: Tokens
    """Tokens of this incarnation up to this contribution, which holds the last `tokens` of them."""
    cut: CutId = NO_CUT
    """The newest cut at which the unit had recorded itself."""

    @property
    def begun(self) -> int:
        """Tokens of this incarnation before this contribution."""
        return self.trained - self.tokens


class Header(Message, frozen=True, tag=True):
    """What a host's part of a contribution is, without its numbers. It is sent on the session at once, even if other
    transfers wait for the link, and again before the body."""

    part: Part
    codec: str
    """Not wider than the run's."""
    size: int
    """Bytes of the body."""
    seconds: Transfer = 0.0
    """Expected seconds until the body has come; 0 if this host has not sent one yet."""
    round_trip: Transfer = 0.0
    """Seconds, and by how many more a step of the unit is longer than one of the run's clock. Such a unit answers as
    late as a far one. 0 if this host has not measured it yet."""
    turn: Turn = 0.0

    @property
    def key(self) -> tuple[RoundId, str, int]:
        """Identifies the part among all that a shard can be sent."""
        return self.part.round, self.part.unit, self.part.host


class Orders(Message, frozen=True, tag=True):
    """All that shard 0 has decided for the other shards so far. A later message replaces an earlier one."""

    step: int = 0
    """The run's clock. Rounds up to this step are opened."""
    seconds: float = 0.0
    """Seconds of an inner step of the slowest live unit."""
    fastest: float = 0.0
    """Seconds of the shortest step of a unit."""
    silent: tuple[tuple[str, int], ...] = ()
    """Connected units that have reported no step for too long, with their incarnations. No shard waits for them."""
    ending: bool = False
    """The target is reached, and the clock stands."""
    cut: CutId = NO_CUT
    """The newest cut. Each shard records itself for it when it receives this."""
    final: str = ""
    """URI of the final cut once it is complete. Then the run is finished."""


class Standing(Message, frozen=True, tag=True):
    """The progress of another shard, which tells it to shard 0 each time that it changes."""

    step: int
    done: bool
    """It has no round in flight and will open none, unless the clock goes on."""
    saved: CutId
    """The newest cut of which its part is in the bucket."""
    kept: CutId = NO_CUT
    """The newest cut, if its part of it is in the bucket and holds all that the shard has merged."""
    idle: bool = False
    """No learner is connected here and no body is held, so nothing will be merged until a learner comes."""
