"""How often an object's status is written for the sake of figures, and who looks because of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from answering import answering

from atoll_operator import statuswriter
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.cluster import Cluster
from atoll_operator.credentials import Credentials
from atoll_operator.keys import Key
from atoll_operator.metrics import Metrics
from atoll_operator.statuswriter import StatusWriter
from atoll_operator.store import Store
from atoll_operator.workqueue import WorkQueue

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

    def unit(self, name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "generation": 1}
        return self.bodies.setdefault(
            name,
            {
                "apiVersion": "atoll.dev/v1alpha1", "kind": "LearnerUnit", "metadata": metadata,
                "spec": {"run": "r"}, "status": {},
            },
        )  # fmt: skip

    async def write(self, name: str, **status: Any) -> bool:
        """Whether the API server has it now."""
        before = self.writes
        key = Key("LearnerUnit", "ns", name)
        assert await self.writer.write(key, self.unit(name), LearnerUnitStatus(**status))
        return self.writes > before


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
