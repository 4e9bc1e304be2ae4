"""Pushes that a host begins and does not end: they hold no more memory than one that it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from atoll_runtime.protocol.events import Part
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.syncer.state import Parts
from atoll_runtime.transport.chunks import split
from atoll_runtime.transport.messages import Header
from atoll_runtime.transport.wire import WireError

PART = Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 8, 1, 0, 4, 4, 8)
HEADER = Header(PART, "bf16", 8)
BODY = bytes(range(8))


async def whole() -> AsyncIterator[bytes]:
    for chunk in split(memoryview(BODY)):
        yield chunk


async def silent() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def begun(parts: Parts, header: Header, stream: AsyncIterator[bytes]) -> asyncio.Task[memoryview]:
    """A push whose bytes are reserved."""
    assert parts.reserve(header) == ""
    return asyncio.create_task(parts.receive(header, stream))


async def test_a_body_that_does_not_come_ends_when_its_sender_would_wait_no_longer() -> None:
    with pytest.raises(TimeoutError):
        await begun(Parts(100, 2, 0.01), HEADER, silent())


async def test_a_push_that_is_begun_anew_ends_the_earlier_one_of_the_same_part_alone() -> None:
    parts = Parts(100, 2)
    other = begun(parts, replace(HEADER, part=dataclasses.replace(PART, host=1)), silent())
    earlier = [begun(parts, HEADER, silent())]
    for _ in range(2):
        await asyncio.sleep(0)
        earlier.append(begun(parts, replace(HEADER), silent()))
    await asyncio.sleep(0)
    assert bytes(await begun(parts, replace(HEADER), whole())) == BODY
    for each in earlier:
        with pytest.raises(TimeoutError):
            await each
    assert not other.done()
    other.cancel()


async def test_a_body_that_is_too_short_is_refused() -> None:
    with pytest.raises(WireError, match="the body ended after 8 of 9 bytes"):
        await begun(Parts(100, 2), replace(HEADER, size=9), whole())


def test_a_host_has_bytes_reserved_once_for_a_part_however_often_it_begins_its_push() -> None:
    parts = Parts(20, 2)
    pushes = [replace(HEADER) for _ in range(32)]
    assert [parts.reserve(push) for push in pushes] == [""] * 32
    assert parts.used == 8
    assert [parts.reserved(push) for push in pushes] == [False] * 31 + [True]
    assert parts.reserve(replace(HEADER, part=dataclasses.replace(PART, unit="b"))) == ""
    for push in pushes[:-1]:
        parts.unreserve(push)
    assert parts.used == 16, "those that had lost their bytes gave none back"
    larger = replace(HEADER, part=dataclasses.replace(PART, stop=7))
    assert parts.reserve(larger) == "14 bytes do not fit: 8 of 20 bytes are in use"
    assert parts.reserved(pushes[-1]), "what does not fit takes nothing away"
    parts.unreserve(pushes[-1])
    assert parts.used == 8
