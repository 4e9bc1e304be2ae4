"""The messages between shard 0 and the others."""

from __future__ import annotations

from atoll_runtime.protocol.events import Orders, Standing
from atoll_runtime.transport.messages import Message


class ShardHello(Message, frozen=True, tag=True):
    """Another shard's first message to shard 0."""

    protocol: int
    run_uid: str
    shard: int
    shards: int
    standing: Standing


class Tell(Message, frozen=True, tag=True):
    """Where a shard is, each time that it changes."""

    standing: Standing


class Figures(Message, frozen=True, tag=True):
    """What a shard reports of itself, from time to time: shard 0 tells the operator of the whole run."""

    report: bytes
    """A `SyncerStatus`."""


class Order(Message, frozen=True, tag=True):
    """What shard 0 has decided so far: the first answer to a shard, and again each time that it changes."""

    orders: Orders
