"""Messages as bytes and back."""

from __future__ import annotations

import msgspec

from atoll_runtime.protocol.messages import Audit, Header, Hello, Mark, Message, Orders, Report, Standing
from atoll_runtime.transport.messages import (
    PROTOCOL,
    Announce,
    Attach,
    Declined,
    DirectoryReply,
    DirectoryRequest,
    Ended,
    Fenced,
    FetchHead,
    Figures,
    Held,
    Marker,
    Over,
    Pull,
    PushReply,
    Refused,
    ShardHello,
    SnapshotHead,
    SnapshotRequest,
    Stop,
    Welcome,
)

Up = Hello | Report | Mark | Audit | Header | ShardHello | Standing | Figures
Down = Welcome | Marker | Pull | Over | Announce | Stop | Fenced | Refused | Orders
Wire = (
    Up
    | Down
    | Attach
    | Held
    | Ended
    | Declined
    | PushReply
    | FetchHead
    | DirectoryRequest
    | DirectoryReply
    | SnapshotRequest
    | SnapshotHead
)
"""Every message of the protocol."""

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Wire] = msgspec.msgpack.Decoder(Wire)


class WireError(Exception):
    """Bytes that are not a message of this protocol, or that do not come as they should."""


def encode(message: Message) -> bytes:
    """Wire bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Wire:
    """Raises `WireError` for anything that is not one of the messages above."""
    try:
        return _messages.decode(data)
    except msgspec.DecodeError as error:
        raise WireError(f"not a message of protocol {PROTOCOL}: {error}") from error
