"""How often an object's status is written, and who is told."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, cast

import pytest
from leaping import leap

from atoll_operator.kube.cache import Cache, Key, Object, without_managed_fields
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.status import StatusMemory, StatusWriter

KEY = Key("Thing", "n", "a")
SECONDS = 10.0


class World:
    """An API server that takes a status only over the version that it has, and its writer. `step` is a figure."""

    def __init__(self) -> None:
        metadata = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}
        self.body: Object | None = {"kind": "Thing", "metadata": metadata}
        self.enqueued: list[float] = []
        self.written: list[bool] = []
        self.memory = StatusMemory()
        self.cache = Cache({"Thing": without_managed_fields}, {})
        self.writer = StatusWriter(
            cast(ApiClient, self),
            self.cache,
            figures=lambda old, new: {**old, "step": 0} == {**new, "step": 0},
            seconds={"Thing": SECONDS},
            enqueue=lambda key, seconds: self.enqueued.append(seconds),
            written=lambda key, body, figures: self.written.append(figures),
        )

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        if self.body is None:
            raise NotFound(404, "NotFound", "it is not there")
        return copy.deepcopy(self.body)

    async def write_status(self, body: Object, status: Object) -> Object:
        current = await self.get(*KEY)
        if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it changed")
        self.change(status=status)
        return await self.get(*KEY)

    def change(self, **parts: Any) -> None:
        assert self.body is not None
        version = str(int(self.body["metadata"]["resourceVersion"]) + 1)
        self.body = {**self.body, **parts, "metadata": {**self.body["metadata"], "resourceVersion": version}}

    async def write(self, **status: Any) -> bool:
        """Whether the API server has the status now."""
        assert await self.writer.write(KEY, await self.get(*KEY), status, self.memory)
        return (await self.get(*KEY)).get("status") == status


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(
        "atoll_operator.kube.status.time.monotonic", lambda: asyncio.get_running_loop().time()
    )
    return World()


def test_figures_wait_for_their_turn_and_anything_else_is_written_at_once(world: World) -> None:
    async def work() -> None:
        assert await world.write(phase="Learning", step=1)
        assert not await world.write(phase="Learning", step=2)
        assert world.enqueued and 0.8 * SECONDS <= world.enqueued[-1] <= SECONDS
        assert await world.write(phase="Healing", step=2)
        await asyncio.sleep(SECONDS)
        assert await world.write(phase="Healing", step=3)
        assert await world.write(phase="Healing", step=3), "nothing to write"
        assert world.written == [False, False, True]

    leap(work())


def test_a_status_is_not_written_over_a_version_that_no_plan_saw(world: World) -> None:
    async def work() -> None:
        stale = await world.get(*KEY)
        world.change(spec={"changed": True})
        assert not await world.writer.write(KEY, stale, {"phase": "Learning"}, world.memory)
        assert world.body is not None and "status" not in world.body
        entry = world.cache.get(KEY)
        assert entry is not None and entry.value["spec"] == {"changed": True}, "it was read again"
        assert world.enqueued and world.enqueued[-1] < 1
        world.body = None
        assert not await world.writer.write(KEY, stale, {"phase": "Learning"}, world.memory)

    leap(work())
