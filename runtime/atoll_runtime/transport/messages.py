"""The wire messages of the protocol besides those that are events. Versions are global steps; sizes are bytes."""

from __future__ import annotations

from atoll_runtime.protocol.identifiers import NO_CUT, CutId, RoundId
from atoll_runtime.protocol.messages import Header, Message, Standing

PROTOCOL = 11
"""Both ends must speak the same. What `Hello` and `Refused` have in common stays as it is: by them two versions find
out."""


WHOLE = -1
"""In the place of a version: none."""


class Welcome(Message, frozen=True, tag=True):
    """The syncer's answer to Hello: its clock, and where a new incarnation goes on."""

    lineage: str
    """Names the history that versions belong to; another one means that held versions say nothing."""
    global_step: int
    versions: tuple[int, ...]
    least: tuple[int, ...]
    """Of each fragment the oldest version that a contribution of this unit may be taken against."""
    cursor: int
    inner_step: int
    cut: CutId = NO_CUT
    """The newest cut that the shard has recorded itself for."""
    merged: int = 0
    """Tokens, of all units: the learning rate follows a target in tokens by them."""
    series: str = ""
    """Names the life of the shard, as in `FetchHead`."""
    taking: tuple[RoundId, ...] = ()
    """Open rounds that have an answer of this host: its body may be on its way still."""


class Marker(Message, frozen=True, tag=True):
    """Shard 0 has begun a cut: what follows comes after the cut."""

    cut: CutId


class Pull(Message, frozen=True, tag=True):
    """A round is open and wants this unit's fragment."""

    round: RoundId
    least: int
    """Least version that a contribution may be taken against: what was merged once does not count again."""


class Over(Message, frozen=True, tag=True):
    """The round is frozen without this unit, merged or discarded: a contribution to it is not wanted any more."""

    round: RoundId


class Announce(Message, frozen=True, tag=True):
    """A version of a fragment can be fetched."""

    fragment: int
    version: int
    needed: bool
    """The unit that is told can contribute against no older one: it holds a contribution of its own, or there is none
    yet."""


class Stop(Message, frozen=True, tag=True):
    """The syncer's clock has reached the target and the final cut is safe: leave cleanly."""

    global_step: int


class Fenced(Message, frozen=True, tag=True):
    """A newer incarnation of this unit is registered; this one must end."""

    incarnation: int
    """The newest one."""


class Refused(Message, frozen=True, tag=True):
    """This host cannot take part: wrong run, layout, codec, protocol or identity."""

    reason: str
    version: bool = False
    """It speaks another protocol: another image of it, or of the syncer, makes it welcome."""


class PushReply(Message, frozen=True, tag=True):
    """What became of a part: the answer on the connection that brought its last chunk, or to one that is not wanted."""

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
    """What this host would have: int4 is the change from what it holds. While the shard has no such encoding, it sends
    a wider one."""
    held: int = WHOLE
    """Version that this host has fetched last of this part, from which a change may be sent."""
    series: str = ""
    """That `held` belongs to."""


class FetchHead(Message, frozen=True, tag=True):
    """What a fetched body is."""

    fragment: int
    version: int
    size: int
    codec: str
    """Of the body."""
    base: int = WHOLE
    """Version that the body is a change of, in int4; else it is the version itself."""
    series: str = ""
    """Names the life of a shard: versions of two lives are not the same bits."""
    cut: CutId = NO_CUT
    """The newest cut that the shard had recorded itself for."""
    merged: int = 0
    """Tokens, as in `Welcome`."""


class Attach(Message, frozen=True, tag=True):
    """A connection for bodies takes part in a transfer. A broken one attaches again, and goes on."""

    what: Header | FetchRequest
    transfer: int
    """Number that a host has given to this fetch: all its connections get the same version."""
    stream: int
    """Number of the connection in it."""
    chunk: int
    """Bytes of a chunk that is fetched."""
    held: bytes = b""
    """A bit for each block of a fetched body that has come before; empty: none."""


class Held(Message, frozen=True, tag=True):
    """A part is wanted; of its body these blocks have come before."""

    blocks: bytes


class Ended(Message, frozen=True, tag=True):
    """What this connection was to carry has come; others may still carry more."""


class Declined(Message, frozen=True, tag=True):
    """There is nothing to fetch."""

    reason: str


class DirectoryRequest(Message, frozen=True, tag=True):
    """Which units can seed this one, and what has it to catch up with?"""

    unit: str
    incarnation: int


class PeerAddress(Message, frozen=True, tag=True):
    """A unit that learns, and where its hosts serve their snapshots, by host."""

    unit: str
    incarnation: int
    addresses: tuple[str, ...]


class DirectoryReply(Message, frozen=True, tag=True):
    """The shard's versions now, and the units whose contributions it counts, by name."""

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
    """What a shard reports of itself, from time to time: shard 0 tells the operator of the whole run."""

    report: bytes
    """A `SyncerStatus`."""
