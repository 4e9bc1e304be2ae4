"""A host's client of the syncer: which failures it handles itself, and how it reports others to the training loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from protocol_parties import until

from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.start import Start
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.protocol.messages import Beginning, Header, Report
from atoll_runtime.protocol.progress import Contribution
from atoll_runtime.protocol.shardview import PullRequest
from atoll_runtime.simulate.blank import BlankIsland, run_contract, unit_contract, whole_body
from atoll_runtime.transport.messages import Announce, FetchHead, FetchRequest, Over, Pull, PushReply, Welcome
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import Down, Up

UNIT = unit_contract()
ROUND, FOLLOWING = RoundId(1, 0, 0), RoundId(2, 1, 0)
BODY = memoryview(bytes(8))


class Shard:
    """A network to a shard that sends what the test sets. The call named `at` fails for lack of memory."""

    broken = 0

    def __init__(self, at: str = "") -> None:
        self.at = at
        self.down: asyncio.Queue[Down] = asyncio.Queue()
        self.heard: list[Up] = []
        self.pushes: list[RoundId] = []
        self.merged = 0

    def reach(self, call: str) -> None:
        if call == self.at:
            raise MemoryError("Unable to allocate 1.55 GiB")

    def say(self, *messages: Down) -> None:
        for message in messages:
            self.down.put_nowait(message)

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
        return FetchHead(0, request.version, 8, "bf16", merged=self.merged), BODY

    async def push(self, header: Any, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        self.reach("push")
        self.pushes.append(header.part.round)
        return PushReply(True)

    def tune(self, streams: int, chunk: int) -> None:
        """There is nothing to tune."""

    async def close(self) -> None:
        """There is nothing to close."""


class Client(SyncerClient):
    """A client of shards with `fragments` fragments each."""

    def __init__(
        self,
        *shards: Shard,
        fragments: int = 1,
        unit: UnitContract = UNIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        count = fragments * len(shards)
        tensors = [TensorInfo(f"w{n}", (4,), False, False) for n in range(count)]
        layout = build_layout(tensors, fragments, len(shards))
        super().__init__(run_contract(), unit, layout, [(0, 4)] * count, [4] * count, shards, clock)
        self.connect([0] * count, 0, "")

    def answer(self) -> None:
        """Contributes to each round that asks."""
        for number, ask in self.pulls().items():
            self.contribute(number, ask, "bf16", BODY, Contribution(0, 1, 1, 1, NO_CUT), 1, 1)


def welcome(fragments: int = 1, merged: int = 0, series: str = "") -> Welcome:
    zeros = (0,) * fragments
    return Welcome("L", 1, zeros, zeros, 0, 0, merged=merged, series=series)


@pytest.mark.parametrize("at", ["session", "fetch", "push"])
async def test_what_ends_a_task_of_the_client_ends_the_training_loop_too(
    at: str, caplog: pytest.LogCaptureFixture
) -> None:
    shard = Shard(at)
    client = Client(shard)
    shard.say(welcome(), Pull(ROUND, 0), Announce(0, 1, 1))
    loop: Any = Loop(
        run_contract(), *[None] * 2, client, *[None] * 2, Start((0,), (0,)), threading.Event(), None
    )
    if at == "push":
        await until(client.pulls)
        client.answer()
    await until(lambda: "the link to the syncer failed" in caplog.text)
    with pytest.raises(MemoryError, match="Unable to allocate"):
        loop.advance()
    await client.disconnect()
    assert all(task.done() for task in client._tasks)
    assert "Traceback" in caplog.text


async def test_why_a_standing_session_broke_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(Shard):
        async def session(self, hello: Any, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
            yield welcome()
            raise TransportError("x: the connection broke")

    client = Client(Breaking())
    await until(lambda: "no link to shard 0" in caplog.text)
    assert "training goes on: x: the connection broke" in caplog.text
    assert client._policy.reading().failures >= 1
    await client.disconnect()


async def test_the_first_round_trip_does_not_include_the_time_to_connect() -> None:
    now = [0.0]

    class Distant(Shard):
        async def session(self, hello: Any, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
            now[0] += 1.0
            async for message in super().session(hello, outgoing):
                yield message

    shard = Distant()
    client = Client(shard, clock=lambda: now[0])
    client.report(1, 1, 8, 5.0, 0.1)
    await until(lambda: shard.heard)
    now[0] += 0.25
    shard.say(welcome())
    await until(lambda: client.answered)
    assert client._policy.reading().rtt_seconds == 0.25
    await client.disconnect()


async def test_a_part_whose_round_is_over_gives_the_link_to_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first of two rounds is merged without this unit, because the unit's link has become slow."""

    class Slow(Shard):
        async def push(self, header: Any, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
            reply = await super().push(header, body, wanted)
            if header.part.round == ROUND:
                await until(lambda: not wanted())
                raise TransportError("broken off")
            return reply

    shard = Slow()
    client = Client(shard, fragments=2)
    shard.say(welcome(2), Pull(ROUND, 0), Pull(FOLLOWING, 0))
    await until(lambda: len(client.pulls()) == 2)
    client.answer()
    await until(lambda: shard.pushes == [ROUND])
    shard.say(Over(ROUND))
    await until(lambda: shard.pushes == [ROUND, FOLLOWING])
    assert "was not sent" not in caplog.text
    await client.disconnect()


async def test_a_contribution_that_was_resumed_does_not_measure_the_link() -> None:
    """The shard may have had nearly all of it before, so its last attempt would show a link that is far too fast."""

    class Breaking(Shard):
        async def push(self, header: Any, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
            reply = await super().push(header, body, wanted)
            if len(self.pushes) == 1:
                raise TransportError("the connection broke")
            return reply

    shard = Breaking()
    client = Client(shard)
    link = client._policy.reading
    shard.say(welcome(), Pull(ROUND, 0))
    await until(client.pulls)
    client.answer()
    await until(lambda: len(shard.pushes) == 2)
    shard.say(Over(ROUND), Pull(RoundId(2, 0, 0), 0))
    await until(client.pulls)
    assert link().up_gbps == 0.0
    assert client._sessions[0].transfers._share.seconds == 0.0, "not measured yet"
    client.answer()
    await until(lambda: link().up_gbps > 0.0)
    assert client._sessions[0].transfers._share.seconds > 0.0
    await client.disconnect()


async def test_a_contribution_to_a_round_that_is_over_is_dropped() -> None:
    shard = Shard()
    client, offer = Client(shard), Contribution(0, 1, 1, 1, NO_CUT)
    client.contribute(0, PullRequest(ROUND, 0), "bf16", BODY, offer, 1, 1)
    with pytest.raises(ValueError, match="8 bytes of float32 must be those of 4 elements"):
        client.contribute(0, PullRequest(ROUND, 0), "float32", BODY, offer, 1, 1)
    client.report(1, 1, 8, 5.0, 0.1)
    await until(lambda: shard.heard)
    assert [type(message) for message in shard.heard] == [Report] and not shard.pushes
    await client.disconnect()


async def test_the_host_that_speaks_for_its_unit_reports_to_shard_0_alone_and_tells_of_its_beginning() -> (
    None
):
    pair = [UNIT.model_copy(update={"host": host, "hosts": 2}) for host in (0, 1)]
    shards = [(Shard(), Shard()) for _ in pair]
    clients = [Client(*each, unit=unit) for each, unit in zip(shards, pair, strict=True)]
    beginning, ((first, second), others) = Beginning(10.0, 30.5, 12.25, 3, 16), shards
    for step in (1, 2, 3):
        for client in clients:
            client.report(step, step, 8 * step, 5.0, 0.1)
        await until(lambda: len(first.heard) == step)  # noqa: B023
        for client in clients:
            client.begin(beginning)
    assert first.heard == [
        Report(step, step, 8 * step, 5.0, 0.1, None if step == 1 else beginning, heard.link)
        for step, heard in enumerate(first.heard, 1)
    ]
    assert [report.link.use.codec for report in first.heard] == ["bf16"] * 3
    assert not any(shard.heard for shard in (second, *others))
    for client in clients:
        await client.disconnect()


class Island(BlankIsland):
    """A unit of one host that trains on 8 tokens a step."""

    cursor, tokens, anchors, updates = 0, 8, (), 0

    def extremes(self, values: Any) -> Any:
        return values, values

    def extract(self, theta: object, number: int, codec: str) -> Any:
        return whole_body(BODY)


async def test_the_steps_that_a_unit_tells_after_a_restart_count_its_first_one() -> None:
    shard, island, start = Shard(), cast(Any, Island()), Start((0,), (0,), inner_step=1000)
    client = Client(shard)
    loop = Loop(run_contract(), island, island, client, island, island, start, threading.Event(), island)
    loop.advance()
    shard.say(welcome(), Pull(ROUND, 0))
    await until(client.pulls)
    loop.advance()
    await until(lambda: len(shard.heard) == 2)
    header, report = shard.heard
    assert isinstance(header, Header) and isinstance(report, Report)
    part = header.part
    assert (part.inner_step, part.steps, part.tokens) == (1001, 1, 8)
    assert (report.step, report.steps, report.tokens) == (1002, 2, 16)
    await client.disconnect()


async def test_a_version_that_the_shard_has_lost_is_not_adopted_later() -> None:
    """The shard merges it anew, with other contributions. Another host of the unit may fetch only that one."""
    shard, island = Shard(), cast(Any, Island())
    client, start = Client(shard), Start((0,), (0,))
    loop = Loop(run_contract(), island, island, client, island, island, start, threading.Event(), island)
    shard.say(welcome(), Announce(0, 1, 1))
    assert (await until(lambda: loop.propose().arrivals))[0].version == 1
    shard.say(welcome(series="after a restart"))
    await until(lambda: client._sessions[0].link.series)
    assert not loop.propose().arrivals
    await client.disconnect()


async def test_the_merged_tokens_are_those_that_shard_0_counts_and_never_go_back() -> None:
    first, other = Shard(), Shard()
    client = Client(first, other)
    assert client.merged() == 0
    first.say(welcome(merged=500))
    other.say(welcome(merged=400))
    await until(lambda: client.answered)
    greeting = client.welcome(0.0)
    assert greeting is not None and greeting.merged == client.merged() == 500
    for version, merged, furthest in ((1, 700, 700), (2, 600, 700)):
        first.merged = merged
        first.say(Announce(0, version, version))
        arrival = (await until(client.arrived))[0]
        assert (arrival.version, client.merged()) == (version, furthest)
        client.adopt(0, arrival)
    await client.disconnect()
