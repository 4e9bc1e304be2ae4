"""The wire messages of the protocol that are not events. Versions are global steps; sizes are bytes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from atoll_runtime.protocol.identifiers import NO_CUT, Count, CutId, RoundId
from atoll_runtime.protocol.messages import Header, Message, Standing, Turn

PROTOCOL = 16
"""Both ends must speak the same protocol. The fields by which `Hello` and `Refused` show a difference must not
change."""
WHOLE = -1
"""Stands for no version."""
LONGEST_TEXT = 1024
"""Most characters of a text in `Figures`."""
MOST_SUSPECTS = 64
"""Most units in `Figures`."""

Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]


class Welcome(Message, frozen=True, tag=True):
    """The syncer's answer to Hello: its clock, and where a new incarnation continues."""

    lineage: str
    """Names the history that versions belong to. If it is another one, held versions have no meaning."""
    global_step: int
    versions: tuple[int, ...]
    least: tuple[int, ...]
    """The oldest version of each fragment that a contribution of this unit may be taken against."""
    cursor: int
    inner_step: int
    cut: CutId = NO_CUT
    """The newest cut that the shard has recorded itself for."""
    merged: int = 0
    """Tokens of all units; the learning rate uses them if the run has a target in tokens."""
    series: str = ""
    """Names the life of the shard, as in `FetchHead`."""
    taking: tuple[RoundId, ...] = ()
    """Open rounds that have an answer of this host. Its body may still be on its way."""


class Marker(Message, frozen=True, tag=True):
    """Shard 0 has begun a cut. Messages that follow come after the cut."""

    cut: CutId


class Pull(Message, frozen=True, tag=True):
    """A round is open and wants this unit's fragment."""

    round: RoundId
    least: int
    """Least version that a contribution may be taken against, so that no work is merged twice."""


class Over(Message, frozen=True, tag=True):
    """The round is frozen without this unit, merged or discarded. It no longer wants a contribution."""

    round: RoundId


class Announce(Message, frozen=True, tag=True):
    """A version of a fragment can be fetched."""

    fragment: int
    version: int
    least: int
    """The oldest anchor that the receiving unit's contribution to the fragment's next round may have."""


class Stop(Message, frozen=True, tag=True):
    """The syncer's clock has reached the target and the final cut is safe. The unit leaves cleanly."""

    global_step: int


class Fenced(Message, frozen=True, tag=True):
    """A newer incarnation of this unit is registered; this one must end."""

    incarnation: int
    """The newest incarnation."""


class Refused(Message, frozen=True, tag=True):
    """This host cannot take part: wrong run, layout, codec, protocol or identity."""

    reason: str
    version: bool = False
    """It speaks another protocol. With another image, of it or of the syncer, it can take part."""


class PushReply(Message, frozen=True, tag=True):
    """What became of a part: sent on the connection of its last chunk, or at once if the part is not wanted."""

    accepted: bool
    reason: str = ""


class FetchRequest(Message, frozen=True, tag=True):
    """Part [start, stop) of a padded fragment, at `version` or newer."""

    unit: str
    incarnation: int
    fragment: int
    version: int
    start: int
    stop: int
    codec: str
    """The codec that this host wants; int4 is the change from what it holds. While the shard does not have that
    encoding, it sends a wider one."""
    held: int = WHOLE
    """The version of this part that this host has fetched last, from which a change may be sent."""
    series: str = ""
    """The series of `held`."""
    host: Count = 0
    turn: Turn = 0.0
    """As in `Header`. A host whose versions come too late to be anchors sends no header."""


class FetchHead(Message, frozen=True, tag=True):
    """What a fetched body is."""

    fragment: int
    version: int
    size: int
    codec: str
    """Codec of the body."""
    base: int = WHOLE
    """For int4, the version that the body is a change of. Otherwise the body is the version itself."""
    series: str = ""
    """Names the life of a shard. The bits of a version differ between two lives."""
    cut: CutId = NO_CUT
    """The newest cut that the shard had recorded itself for."""
    merged: int = 0
    """Tokens, as in `Welcome`."""


class Attach(Message, frozen=True, tag=True):
    """A connection for bodies takes part in a transfer. A broken one attaches again and continues."""

    what: Header | FetchRequest
    transfer: int
    """Number that the host has given to this fetch, so that all its connections get the same version."""
    stream: int
    """Number of the connection in the transfer."""
    chunk: int
    """Bytes of a chunk, for a fetch."""
    held: bytes = b""
    """One bit for each block of a fetched body: whether it has arrived before. Empty if none has."""


class Held(Message, frozen=True, tag=True):
    """The part is wanted. `blocks`: one bit for each block of its body, whether it has arrived before."""

    blocks: bytes


class Ended(Message, frozen=True, tag=True):
    """All that this connection had to carry has arrived. Other connections may still carry more."""


class Declined(Message, frozen=True, tag=True):
    """There is nothing to fetch."""

    reason: str


class DirectoryRequest(Message, frozen=True, tag=True):
    """Asks which units can seed this one, and for the versions that it must reach."""

    unit: str
    incarnation: int


class PeerAddress(Message, frozen=True, tag=True):
    """A unit that is learning, and the addresses at which its hosts serve their snapshots, by host."""

    unit: str
    incarnation: int
    addresses: tuple[str, ...]


class DirectoryReply(Message, frozen=True, tag=True):
    """The shard's present versions, and the units whose contributions it counts, by name."""

    lineage: str
    versions: tuple[int, ...]
    peers: tuple[PeerAddress, ...]


class SnapshotRequest(Message, frozen=True, tag=True):
    """Asks another unit for every fragment, each at version `least` or newer."""

    unit: str
    """The unit that asks."""
    incarnation: int
    fingerprint: str
    shards: int
    least: tuple[int, ...]


class SnapshotHead(Message, frozen=True, tag=True):
    """One host's part [start, stop) of a fragment; its anchor, mu and nu follow, float32."""

    number: int
    version: int
    count: int
    """Updates that the moments had seen."""
    start: int
    stop: int


class ShardHello(Message, frozen=True, tag=True):
    """Another shard's first message to shard 0."""

    protocol: int
    run_uid: str
    shard: int
    shards: int
    standing: Standing


class Figures(Message, frozen=True, tag=True):
    """What another shard adds to the status of the run, each second. Its figures are those of a `SyncerStatus`."""

    message: Text
    global_step: int
    tokens: int
    rounds: int
    bytes_in: int
    bytes_out: int
    restarts: int
    suspects: Annotated[dict[str, tuple[int, Text]], msgspec.Meta(max_length=MOST_SUSPECTS)]
    """Connected units that the shard does not trust: their incarnations, and why."""
