"""Messages as bytes and back."""

from __future__ import annotations

from typing import Any, Union

import msgspec

from atoll_runtime.protocol.messages import Audit, Header, Hello, Message, Orders, Report, Standing
from atoll_runtime.transport.messages import (
    PROTOCOL,
    Announce,
    Fenced,
    Figures,
    Marker,
    Over,
    Pull,
    Refused,
    ShardHello,
    Stop,
    Welcome,
)

Up = Hello | Report | Audit | Header | ShardHello | Standing | Figures
Down = Welcome | Marker | Pull | Over | Announce | Stop | Fenced | Refused | Orders
"""The messages of a session."""

_encoder = msgspec.msgpack.Encoder()
_every: Any = Union[tuple(Message.__subclasses__())]  # noqa: UP007
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(_every)


class WireError(Exception):
    """Bytes that are not a message of this protocol, or that do not arrive as expected."""


def encode(message: Message) -> bytes:
    """Wire bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Raises `WireError` for bytes that are no `Message`."""
    try:
        return _messages.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a message of protocol {PROTOCOL}: {error}") from error
