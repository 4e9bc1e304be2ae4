"""A shard's client: what it mends itself, and how the training loop hears of the rest."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.exchange import Arrival, Exchange
from atoll_runtime.learner.holdings import Holdings
from atoll_runtime.learner.island import _merged
from atoll_runtime.learner.loop import Loop, Start
from atoll_runtime.sync.events import NO_CUT, RoundId
from atoll_runtime.sync.fragments import TensorInfo, build_layout
from atoll_runtime.sync.link import Ask, Errand
from atoll_runtime.sync.progress import Offer
from atoll_runtime.transport.messages import (
    WHOLE,
    Announce,
    Down,
    FetchHead,
    FetchRequest,
    Over,
    Pull,
    PushReply,
    Welcome,
)
from atoll_runtime.transport.transport import TransportError

LAYOUT = build_layout([TensorInfo("w", (4,), False, False)], 1)
UNIT = UnitContract(unit="a", incarnation=1, host=0, hosts=1, coordinator="a:1", batch=1, stream=0, streams=1)
ROUND = RoundId(1, 0, 0)


class Broken:
    """A transport and its session; the call named `at` ends in an error that no further attempt mends."""

    def __init__(self, at: str) -> None:
        self.at, self.down = at, queue.Queue[Down | None]()

    def _reach(self, call: str) -> None:
        if call == self.at:
            raise MemoryError("Unable to allocate 1.55 GiB")

    def session(self, hello: Any, next_up: Callable[[], Any]) -> Broken:
        self._reach("session")
        threading.Thread(target=lambda: [None for _ in iter(next_up, None)], daemon=True).start()
        return self

    def receive(self) -> Down | None:
        return self.down.get()

    def fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        self._reach("fetch")
        return FetchHead(0, request.version, 8), memoryview(bytes(8))

    def push(self, head: Any, body: memoryview, wanted: Callable[[], bool]) -> Any:
        self._reach("push")

    def close(self) -> None:
        self.down.put(None)


@pytest.mark.parametrize("at", ["session", "fetch", "push"])
def test_what_ends_a_links_thread_ends_the_training_loop_too(
    at: str, make_run: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run, transport = make_run(), Broken(at)
    exchange = Exchange(run, UNIT, LAYOUT, [(0, 4)], [4], [transport])
    exchange.start((0,), 0, "")
    for message in (Welcome("L", 1, (0,), (0,), 0, 0), Pull(ROUND, 0), Announce(0, 1, True)):
        transport.down.put(message)
    loop: Any = Loop(run, *[None] * 2, exchange, *[None] * 2, Start((0,), (0,)), threading.Event(), None)
    if at == "push":
        eventually(exchange.pulls)
        part = np.zeros(4, exchange._dtype)
        exchange.contribute(0, Ask(ROUND, 0, 0), part, Offer(0, 1, 1, 1, NO_CUT), 1)
    eventually(lambda: exchange._boxes[0].failure)
    with pytest.raises(MemoryError, match="Unable to allocate"):
        loop.advance()
    exchange.close(10)
    assert all(task.done() for task in exchange._wires[0]._tasks)
    assert "the link to shard 0 of the syncer failed" in caplog.text and "Traceback" in caplog.text


def test_a_part_whose_round_is_over_gives_the_link_to_the_next_one(
    make_run: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of two rounds is merged without this unit, whose link has become slow."""

    class Slow(Broken):
        begun, whole = list[RoundId](), list[RoundId]()

        def push(self, head: Any, body: memoryview, wanted: Callable[[], bool]) -> Any:
            self.begun.append(head.round)
            if head.round == ROUND:
                eventually(lambda: not wanted())
                raise TransportError("broken off")
            self.whole.append(head.round)
            return PushReply(True)

    layout = build_layout([TensorInfo(name, (4,), False, False) for name in "vw"], 2)
    transport, following = Slow(""), RoundId(2, 1, 0)
    exchange = Exchange(make_run(), UNIT, layout, [(0, 4)] * 2, [4] * 2, [transport])
    exchange.start((0, 0), 0, "")
    for message in (Welcome("L", 1, (0, 0), (0, 0), 0, 0), Pull(ROUND, 0), Pull(following, 0)):
        transport.down.put(message)
    eventually(lambda: len(exchange.pulls()) == 2)
    part = np.zeros(4, exchange._dtype)
    for number, ask in exchange.pulls().items():
        exchange.contribute(number, ask, part, Offer(0, 1, 1, 1, NO_CUT), 1)
    eventually(lambda: transport.begun == [ROUND])
    transport.down.put(Over(ROUND))
    eventually(lambda: transport.whole == [following])
    exchange.close(10)
    assert (exchange.counters.pushed, exchange.counters.dropped) == (1, 1)
    assert "was not sent" not in caplog.text


def test_a_link_that_is_closed_under_its_threads_has_not_failed(make_run: Any, eventually: Any) -> None:
    class Closed(Broken):
        def receive(self) -> Down | None:
            if (message := self.down.get()) is None:
                raise ValueError("Cannot invoke RPC on closed channel!")
            return message

    transport = Closed("")
    exchange = Exchange(make_run(), UNIT, LAYOUT, [(0, 4)], [4], [transport])
    exchange.start((0,), 0, "")
    transport.down.put(Welcome("L", 1, (0,), (0,), 0, 0))
    eventually(lambda: exchange.welcome(0.0))
    exchange.close(10)
    exchange.check()


@pytest.mark.parametrize("length", [0, 6, 7, 10])
def test_a_body_of_a_wrong_length_is_fetched_again(length: int) -> None:
    with pytest.raises(TransportError, match="came"):
        Holdings("bf16", [(0, 4)]).take(FetchHead(0, 1, length, WHOLE), memoryview(bytes(length)))


@pytest.mark.parametrize(("host", "shards", "sent"), [(0, 1, [True]), (1, 1, [False]), (0, 2, [True, False])])
def test_the_host_that_speaks_for_its_unit_reports_to_shard_0_alone(
    host: int, shards: int, sent: list[bool], make_run: Any
) -> None:
    whole = build_layout([TensorInfo(f"w{n}", (4,), False, False) for n in range(2)], 1, shards)
    spans, unit = [(0, 4)] * shards, UNIT.model_copy(update={"host": host, "hosts": 2})
    exchange = Exchange(make_run(), unit, whole, spans, [4] * shards)
    boxes = exchange.open([0] * shards)
    exchange.report(1, 8, 5.0, 0.1, 8)
    assert [box.next_up() is not None for box in boxes] == sent


def test_the_merged_tokens_are_those_that_shard_0_counts_and_never_go_back(make_run: Any) -> None:
    whole = build_layout([TensorInfo(f"w{n}", (4,), False, False) for n in range(2)], 1, 2)
    exchange = Exchange(make_run(), UNIT, whole, [(0, 4)] * 2, [4] * 2)
    boxes, arrival = exchange.open([0, 0]), Arrival(1, np.zeros(4), "L")
    assert exchange.merged() == 0
    for box, merged in zip(boxes, (500, 400), strict=True):
        box.deliver(Welcome("L", 1, (1,), (1,), 0, 0, merged=merged))
    greeting = exchange.welcome(0.0)
    assert greeting is not None and greeting.merged == exchange.merged() == 500
    for merged, furthest in ((700, 700), (600, 700)):
        boxes[0].put_arrival(Errand(0, 1, "L"), arrival, FetchHead(0, 1, 8, merged=merged), 0.1)
        assert exchange.merged() == furthest


def test_merged_tokens_come_from_the_checkpoint_without_a_syncer() -> None:
    def unit(merged: int) -> dict[str, Any]:
        return {"account": {"merged": merged, "fragments": 3}}

    assert _merged({"units": {"a": unit(900), "b": unit(601)}}) == 500
    assert _merged({"units": {"a": {"merged_step": 7}}}) == _merged({}) == 0
