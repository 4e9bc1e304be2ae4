"""A host's client of the syncer: which failures it handles itself, and how it reports others to the training loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from contracts import unit_contract
from protocol_parties import until

from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.start import Start, _merged
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.protocol.link import Ask
from atoll_runtime.protocol.messages import Beginning, Report
from atoll_runtime.protocol.progress import Offer
from atoll_runtime.transport.messages import Announce, FetchHead, FetchRequest, Over, Pull, PushReply, Welcome
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import Down, Up

UNIT = unit_contract()
ROUND = RoundId(1, 0, 0)


class Shard:
    """A network to a shard that sends what the test sets. The call named `at` fails for lack of memory."""

    def __init__(self, at: str = "") -> None:
        self.at = at
        self.down: asyncio.Queue[Down] = asyncio.Queue()
        self.heard: list[Up] = []
        self.merged = 0

    def reach(self, call: str) -> None:
        if call == self.at:
            raise MemoryError("Unable to allocate 1.55 GiB")

    async def session(self, hello: Any, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        self.reach("session")

        async def hear() -> None:
            async for message in outgoing:
                self.heard.append(message)

        hearing = asyncio.create_task(hear())
        try:
            while True:
                yield await self.down.get()
        finally:
            hearing.cancel()

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        self.reach("fetch")
        return FetchHead(0, request.version, 8, "bf16", merged=self.merged), memoryview(bytes(8))

    async def push(self, header: Any, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        self.reach("push")
        return PushReply(True)

    broken = 0

    def tune(self, streams: int, chunk: int) -> None:
        """There is nothing to tune."""

    async def close(self) -> None:
        """There is nothing to close."""


class Parties:
    """A client and its shards, each with `fragments` fragments."""

    def __init__(
        self, run: RunContract, shards: Sequence[Shard], fragments: int = 1, unit: UnitContract = UNIT
    ) -> None:
        count = fragments * len(shards)
        tensors = [TensorInfo(f"w{n}", (4,), False, False) for n in range(count)]
        self.layout, self.shards = build_layout(tensors, fragments, len(shards)), shards
        self.client = SyncerClient(run, unit, self.layout, [(0, 4)] * count, [4] * count, shards)
        self.client.connect([0] * count, 0, "")

    def welcome(self, *merged: int) -> None:
        for shard, tokens in zip(self.shards, merged, strict=True):
            zeros = (0,) * self.layout.width
            shard.down.put_nowait(Welcome("L", 1, zeros, zeros, 0, 0, merged=tokens))

    def contribute(self) -> None:
        for number, ask in self.client.pulls().items():
            self.client.contribute(number, ask, "bf16", memoryview(bytes(8)), Offer(0, 1, 1, 1, NO_CUT), 1)


@pytest.mark.parametrize("at", ["session", "fetch", "push"])
async def test_what_ends_a_task_of_the_client_ends_the_training_loop_too(
    at: str, make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run, shard = make_run(), Shard(at)
    parties = Parties(run, [shard])
    client = parties.client
    parties.welcome(0)
    for message in (Pull(ROUND, 0), Announce(0, 1, True)):
        shard.down.put_nowait(message)
    loop: Any = Loop(run, *[None] * 2, client, *[None] * 2, Start((0,), (0,)), threading.Event(), None)
    if at == "push":
        await until(client.pulls)
        parties.contribute()
    await until(lambda: client._signals.failure)
    with pytest.raises(MemoryError, match="Unable to allocate"):
        loop.advance()
    await client.disconnect()
    assert all(task.done() for task in client._tasks)
    assert "the link to the syncer failed" in caplog.text and "Traceback" in caplog.text


async def test_a_part_whose_round_is_over_gives_the_link_to_the_next_one(
    make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of two rounds is merged without this unit, because the unit's link has become slow."""

    class Slow(Shard):
        begun, whole = list[RoundId](), list[RoundId]()

        async def push(self, header: Any, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
            self.begun.append(header.part.round)
            if header.part.round == ROUND:
                await until(lambda: not wanted())
                raise TransportError("broken off")
            self.whole.append(header.part.round)
            return PushReply(True)

    shard, following = Slow(), RoundId(2, 1, 0)
    parties = Parties(make_run(), [shard], fragments=2)
    client = parties.client
    parties.welcome(0)
    for message in (Pull(ROUND, 0), Pull(following, 0)):
        shard.down.put_nowait(message)
    await until(lambda: len(client.pulls()) == 2)
    parties.contribute()
    await until(lambda: shard.begun == [ROUND])
    shard.down.put_nowait(Over(ROUND))
    await until(lambda: shard.whole == [following])
    await until(lambda: client.counters.pushed)
    assert (client.counters.pushed, client.counters.dropped) == (1, 1)
    assert "was not sent" not in caplog.text
    await client.disconnect()


async def test_a_contribution_that_was_resumed_does_not_measure_the_link(make_run: Any) -> None:
    """The shard may have had nearly all of it before, so its last attempt would show a link that is far too fast."""

    class Breaking(Shard):
        attempts = 0

        async def push(self, header: Any, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
            self.attempts += 1
            if self.attempts == 1:
                raise TransportError("the connection broke")
            return PushReply(True)

    shard = Breaking()
    parties = Parties(make_run(), [shard])
    client = parties.client
    parties.welcome(0)
    shard.down.put_nowait(Pull(ROUND, 0))
    await until(client.pulls)
    parties.contribute()
    await until(lambda: client.counters.pushed)
    assert client._policy.reading().up_gbps == 0.0
    assert client._sessions[0].transfers._share.seconds == 0.0, "not measured yet"
    for message in (Over(ROUND), Pull(RoundId(2, 0, 0), 0)):
        shard.down.put_nowait(message)
    await until(client.pulls)
    parties.contribute()
    await until(lambda: client.counters.pushed == 2)
    assert client._policy.reading().up_gbps > 0.0
    assert client._sessions[0].transfers._share.seconds > 0.0
    await client.disconnect()


async def test_a_contribution_to_a_round_that_is_over_is_dropped_and_counted(make_run: Any) -> None:
    parties = Parties(make_run(), [Shard()])
    client = parties.client
    offer = Offer(0, 1, 1, 1, NO_CUT)
    client.contribute(0, Ask(ROUND, 0), "bf16", memoryview(bytes(8)), offer, 1)
    assert client.counters.dropped == 1
    with pytest.raises(ValueError, match="8 bytes of float32 must be those of 4 elements"):
        client.contribute(0, Ask(ROUND, 0), "float32", memoryview(bytes(8)), offer, 1)
    await client.disconnect()


@pytest.mark.parametrize(("host", "shards", "sent"), [(0, 1, [True]), (1, 1, [False]), (0, 2, [True, False])])
async def test_the_host_that_speaks_for_its_unit_reports_to_shard_0_alone(
    host: int, shards: int, sent: list[bool], make_run: Any
) -> None:
    unit = UNIT.model_copy(update={"host": host, "hosts": 2})
    parties = Parties(make_run(), [Shard() for _ in range(shards)], unit=unit)
    parties.client.report(1, 8, 5.0, 0.1, 8)
    assert [Report in session._unsent for session in parties.client._sessions] == sent
    await parties.client.disconnect()


async def test_every_report_tells_of_the_beginning_once_it_is_known(make_run: Any) -> None:
    beginning, parties = Beginning(10.0, 30.5, 12.25, 3, 16), Parties(make_run(), [Shard()])
    (shard,), client = parties.shards, parties.client
    client.report(1, 8, 5.0, 0.1, 8)
    await until(lambda: len(shard.heard) == 1)
    client.begin(beginning)
    for step in (2, 3):
        client.report(step, 8, 5.0, 0.1, 8)
        await until(lambda: len(shard.heard) == step)  # noqa: B023
    assert shard.heard == [
        Report(step, step, 8 * step, 5.0, 0.1, 8, None if step == 1 else beginning, heard.link)
        for step, heard in enumerate(shard.heard, 1)
    ]
    assert [report.link.use.codec for report in shard.heard] == ["bf16"] * 3
    await client.disconnect()


async def test_the_merged_tokens_are_those_that_shard_0_counts_and_never_go_back(make_run: Any) -> None:
    parties = Parties(make_run(), [Shard(), Shard()])
    client, first = parties.client, parties.shards[0]
    assert client.merged() == 0
    parties.welcome(500, 400)
    await until(lambda: client.answered)
    greeting = client.welcome(0.0)
    assert greeting is not None and greeting.merged == client.merged() == 500
    for version, merged, furthest in ((1, 700, 700), (2, 600, 700)):
        first.merged = merged
        first.down.put_nowait(Announce(0, version, True))
        assert (await until(client.arrived))[0].version == version
        assert client.merged() == furthest
    await client.disconnect()


def test_merged_tokens_come_from_the_checkpoint_without_a_syncer() -> None:
    def unit(merged: int) -> dict[str, Any]:
        return {"account": {"merged": merged, "owned": [0, 1, 2]}}

    assert _merged({"units": {"a": unit(900), "b": unit(601)}}) == 500
    assert _merged({"units": {"a": {"merged_step": 7}}}) == _merged({}) == 0
