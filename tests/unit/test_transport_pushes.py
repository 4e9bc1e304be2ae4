"""Pushes that a host begins and does not finish hold no more memory than one that it finishes."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from atoll_runtime.payloads import HostPart, Scan
from atoll_runtime.protocol.effects import Release
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Part
from atoll_runtime.syncer import state
from atoll_runtime.syncer.state import LEAST_BUDGET, SHARE, Parts
from atoll_runtime.transport.chunks import Assembly
from atoll_runtime.transport.transport import Receive
from atoll_runtime.transport.wire import WireError

PART = Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 8, 1, 0, 4, 4, 8)
HEADER = Header(PART, "bf16", 8)
BODY = bytes(range(8))


async def whole(assembly: Assembly) -> None:
    assembly.fill(memoryview(BODY))


async def silent(assembly: Assembly) -> None:
    await asyncio.Event().wait()


async def broken(assembly: Assembly) -> None:
    raise WireError("the connection broke")


def begun(parts: Parts, header: Header, receive: Receive) -> asyncio.Task[memoryview]:
    """Starts a push with reserved bytes."""
    assert parts.reserve(header) == ""
    return asyncio.create_task(parts.receive(header, receive))


async def test_a_body_that_does_not_come_ends_when_its_sender_would_wait_no_longer() -> None:
    with pytest.raises(TimeoutError):
        await begun(Parts(100, 2, 0.01), HEADER, silent)


async def test_a_push_that_is_begun_anew_ends_the_earlier_one_of_the_same_part_alone() -> None:
    parts = Parts(100, 2)
    other = begun(parts, replace(HEADER, part=dataclasses.replace(PART, host=1)), silent)
    earlier = [begun(parts, HEADER, silent)]
    for _ in range(2):
        await asyncio.sleep(0)
        earlier.append(begun(parts, replace(HEADER), silent))
    await asyncio.sleep(0)
    assert bytes(await begun(parts, replace(HEADER), whole)) == BODY
    for each in earlier:
        with pytest.raises(TimeoutError):
            await each
    assert not other.done()
    other.cancel()


async def test_what_came_before_a_push_broke_is_kept_for_the_same_part_until_its_round_is_over() -> None:
    parts, kept = Parts(20, 2), list[Assembly]()

    async def keep(assembly: Assembly) -> None:
        kept.append(assembly)
        await (whole if len(kept) > 2 else broken)(assembly)

    for _ in range(2):
        header = replace(HEADER, seconds=2.0)
        with pytest.raises(WireError):
            await begun(parts, header, keep)
        parts.end(header, wanted=True)
        assert parts.used == 8
    assert bytes(await begun(parts, HEADER, keep)) == BODY
    assert kept[0] is kept[1] is kept[2]
    parts.end(HEADER, wanted=True)
    assert parts.used == 0, "it is not broken"
    for wanted, used in ((True, 8), (False, 0)):
        with pytest.raises(WireError):
            await begun(parts, HEADER, broken)
        parts.end(HEADER, wanted)
        assert parts.used == used
        parts.release(Release(PART.round, "b"))
        assert parts.used == used
        parts.release(Release(PART.round, None))
        assert parts.used == 0


async def test_a_push_whose_round_is_over_gives_its_bytes_to_a_part_that_needs_them() -> None:
    parts = Parts(16, 2)
    pushes = [begun(parts, replace(HEADER, part=dataclasses.replace(PART, host=n)), silent) for n in (1, 2)]
    await asyncio.sleep(0)
    assert parts.reserve(HEADER) == "8 bytes do not fit: 16 of 16 bytes are in use"
    parts.release(Release(PART.round, None))
    assert parts.used == 16
    assert bytes(await begun(parts, HEADER, whole)) == BODY
    for push in pushes:
        with pytest.raises(TimeoutError):
            await push
    assert parts.used == 8


def test_a_merge_takes_no_part_of_a_host_that_the_unit_no_longer_has_and_the_newest_of_the_others() -> None:
    parts = Parts(40, 2)
    for host, hosts, size in ((1, 2, 8), (0, 1, 8), (0, 1, 6)):
        header = Header(dataclasses.replace(PART, host=host, hosts=hosts, stop=size // 2), "bf16", size)
        assert parts.reserve(header) == ""
        parts.hold(header, HostPart(0, memoryview(BODY)[:size], Scan(True, ())))
    [(of, held)] = parts.take([PART]).items()
    assert (of, held.body.nbytes, parts.used) == (("a", 0), 6, 8 + 6)
    parts.release(Release(PART.round, None))
    assert parts.used == 0


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


@pytest.mark.parametrize(
    ("limits", "shared"),
    [
        ({}, 2 << 30),
        ({"memory.max": "max"}, 2 << 30),
        ({"memory.max": f"{1 << 30}"}, 1 << 30),
        ({"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}"}, 2 << 30),
        ({"memory/memory.limit_in_bytes": f"{1 << 30}"}, 1 << 30),
        ({"memory.max": "4096"}, SHARE * LEAST_BUDGET),
    ],
)
def test_contributions_have_a_quarter_of_the_memory_that_the_container_may_use(
    limits: dict[str, str], shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a machine of 2 GiB, with the files of either version of control groups."""
    files = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in limits.items()}
    for path, text in (files | {"proc/meminfo": f"MemTotal:  {2 << 20} kB\n"}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(state, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert state.budget() == shared // SHARE
