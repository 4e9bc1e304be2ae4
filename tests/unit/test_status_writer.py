"""How often an object's status is written for the sake of figures, and who looks because of it."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from answering import answering
from pydantic import BaseModel

from atoll_operator.api.conditions import Condition
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.kube import status as statuswriter
from atoll_operator.kube.client import Cluster
from atoll_operator.kube.credentials import Credentials
from atoll_operator.kube.keys import Key
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.status import StatusWriter
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.store import Store

RUN = Key("TrainingRun", "ns", "r")


class World:
    """An API server that takes every status, and whoever looks at a run."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.writes = 0
        self.looked: list[Key] = []
        self.store = Store()
        self.queue: WorkQueue[Key] = WorkQueue(self._look)
        self.writer: StatusWriter

    async def _look(self, key: Key) -> None:
        self.looked.append(key)

    async def handle(self, request: web.Request) -> web.Response:
        sent = await request.json()
        self.writes += 1
        body = self.bodies[sent["metadata"]["name"]]
        body["metadata"]["resourceVersion"] = str(int(body["metadata"]["resourceVersion"]) + 1)
        body["status"] = sent["status"]
        return web.json_response(body)

    def body(self, key: Key) -> dict[str, Any]:
        metadata = {
            "name": key.name, "namespace": "ns", "uid": key.name, "resourceVersion": "1", "generation": 1,
        }  # fmt: skip
        return self.bodies.setdefault(
            key.name,
            {
                "apiVersion": "atoll.dev/v1alpha1", "kind": key.kind, "metadata": metadata,
                "spec": {"run": "r"} if key.kind == "LearnerUnit" else {}, "status": {},
            },
        )  # fmt: skip

    async def write(self, name: str, **status: Any) -> bool:
        """A unit's status; whether the API server has it now."""
        return await self._write(Key("LearnerUnit", "ns", name), LearnerUnitStatus(**status))

    async def write_run(self, ready: int, **changes: Any) -> bool:
        """The status of a run with so many of its units ready; whether the API server has it now."""
        return await self._write(RUN, starting(ready).model_copy(update=changes))

    async def _write(self, key: Key, status: BaseModel) -> bool:
        before = self.writes
        assert await self.writer.write(key, self.body(key), status)
        return self.writes > before


UNITS, QUORUM = 500, 300


def starting(ready: int) -> TrainingRunStatus:
    """Of a run whose units come one after the other."""
    now = Condition(
        type="Ready",
        status="True" if ready >= QUORUM else "False",
        reason="QuorumLearning" if ready >= QUORUM else "QuorumNotMet",
        message=f"{ready} of {UNITS} units learn, {QUORUM} are needed",
        last_transition_time="2026-11-22T00:00:00Z",
    )
    return TrainingRunStatus(
        phase="Running",
        units=UNITS,
        units_wanted=UNITS,
        units_ready=ready,
        units_updated=UNITS,
        units_summary=f"{ready}/{UNITS}",
        conditions=(now,),
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    async with answering(one.handle) as address:
        access = Credentials(address, ssl.create_default_context())
        async with Cluster(access, Metrics()) as cluster:
            one.writer = StatusWriter(cluster, one.store, one.queue)
            working = asyncio.create_task(one.queue.run())
            yield one
            working.cancel()
            await asyncio.wait([working])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the writer's clock on by so many seconds."""
    now = [1000.0]
    monkeypatch.setattr(statuswriter, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


async def test_figures_wait_and_news_does_not(world: World, clock: Callable[[float], None]) -> None:
    assert await world.write("u", phase="Learning", step=1)
    assert not await world.write("u", phase="Learning", step=2)
    assert await world.write("u", phase="Healing", step=2)
    clock(3)
    assert await world.write("u", phase="Healing", step=3)
    assert not await world.write("u", phase="Healing", step=3)


async def test_a_small_run_beside_many_units_that_rest_is_written_as_often_as_one_alone(
    world: World, clock: Callable[[float], None]
) -> None:
    for number in range(400):
        await world.write(f"rests-{number}", phase="Learning", step=1)
    await world.write("trains", phase="Learning", step=1)
    assert world.writer.figures_seconds == statuswriter.FIGURES_PASS_SECONDS
    clock(100)
    assert await world.write("trains", phase="Learning", step=2)
    assert world.writer.figures_seconds == statuswriter.INTERVAL_SECONDS
    clock(3)
    assert await world.write("trains", phase="Learning", step=3)


async def test_a_run_looks_when_a_unit_tells_more_than_figures(
    world: World, clock: Callable[[float], None]
) -> None:
    async def looked(times: int) -> None:
        async with asyncio.timeout(20):
            while world.looked.count(RUN) < times:
                await asyncio.sleep(0.01)

    await world.write("u", phase="Learning", step=1)
    await looked(1)
    for step in range(2, 5):
        clock(3)
        assert await world.write("u", phase="Learning", step=step)
    await world.write("u", phase="Healing", step=5)
    await looked(2)
    assert world.looked.count(RUN) == 2


async def test_a_start_of_500_units_writes_their_run_every_few_seconds_and_what_matters_at_once(
    world: World, clock: Callable[[float], None]
) -> None:
    written = []
    for ready in range(UNITS + 1):
        if await world.write_run(ready):
            written.append(ready)
        clock(0.1)
    at_once = {0, 1, QUORUM, UNITS}
    assert at_once <= set(written)
    gaps = [
        later - earlier for earlier, later in itertools.pairwise(written) if not {earlier, later} & at_once
    ]
    assert gaps and min(gaps) >= 15, "1.5 s at least, in tenths"
    assert max(gaps) <= 26, "and 2.5 s at most, and a look"
    assert len(written) <= 50 / 1.5 + len(at_once)


@pytest.mark.parametrize(
    "news",
    [
        pytest.param({"restarts": 1}, id="a-failure"),
        pytest.param({"units_wanted": UNITS + 1}, id="another-number-of-units"),
        pytest.param({"units_updated": UNITS - 1}, id="a-rolling-restart-begins"),
        pytest.param({"units": UNITS - 1}, id="a-unit-is-gone"),
        pytest.param({"phase": "Finishing"}, id="phase"),
        pytest.param({"units_ready": UNITS}, id="all-are-ready"),
        pytest.param({"units_ready": 0}, id="none-is"),
        pytest.param({"units_ready": UNITS + 1}, id="more-are-than-wanted"),
    ],
)
async def test_counts_of_units_hold_nothing_else_back(
    news: dict[str, Any], world: World, clock: Callable[[float], None]
) -> None:
    assert await world.write_run(10)
    assert not await world.write_run(11)
    assert await world.write_run(12, **news)


async def test_a_count_that_had_to_wait_is_shown_when_its_turn_has_come(
    world: World, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuswriter, "INTERVAL_SECONDS", 0.1)
    assert await world.write_run(UNITS - 3)
    assert not await world.write_run(UNITS - 2)
    async with asyncio.timeout(20):
        while RUN not in world.looked:
            await asyncio.sleep(0.01)
    clock(0.2)
    assert await world.write_run(UNITS - 2), "though no more units came"
