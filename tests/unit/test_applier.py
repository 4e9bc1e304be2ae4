"""What the applier deletes: only what its owner made, whatever name that has. Against a small real HTTP server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.inventory import Inventory

Object = dict[str, Any]
PATHS = {
    "Service": "/api/v1/namespaces/n/services/r-syncer",
    "StatefulSet": "/apis/apps/v1/namespaces/n/statefulsets/r-syncer",
}


def thing(kind: str, uid: str, owner: str, version: int) -> Object:
    references = [{"uid": owner, "controller": True}] if owner else []
    return {
        "kind": kind,
        "metadata": {
            "name": "r-syncer", "namespace": "n", "uid": uid, "resourceVersion": str(version),
            "generation": 1, "labels": {"atoll.dev/run": "r"}, "ownerReferences": references,
        },
    }  # fmt: skip


class World:
    """An API server that deletes what it is asked to, the store that watches it, and an applier."""

    def __init__(self) -> None:
        self.there: dict[str, Object] = {}
        self.applied: list[str] = []
        self.store = Inventory()
        self.applier: Applier

    async def delete(self, request: web.Request) -> web.Response:
        found, wanted = self.there.get(request.path), (await request.json()).get("preconditions", {})
        if found is None:
            return web.json_response({"reason": "NotFound"}, status=404)
        if wanted.get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
            return web.json_response({"reason": "Conflict"}, status=409)
        return web.json_response(self.there.pop(request.path))

    async def apply(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.applied.append(body["metadata"]["name"])
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": str(len(self.applied))}
        return web.json_response(body)

    def make(self, kind: str, uid: str, owner: str, version: int, seen: bool = True) -> None:
        body = thing(kind, uid, owner, version)
        self.there[PATHS[kind]] = body
        if seen:
            self.store.put(kind, body)

    async def remove(self) -> None:
        """As every pass over a complete run does."""
        for kind in PATHS:
            await self.applier.remove("run", Key(kind, "n", "r-syncer"))

    def uids(self) -> set[str]:
        return {body["metadata"]["uid"] for body in self.there.values()}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    application = web.Application()
    application.router.add_delete("/{path:.*}", one.delete)
    application.router.add_patch("/{path:.*}", one.apply)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = Credentials(f"http://127.0.0.1:{runner.addresses[0][1]}", ssl.create_default_context())
    async with Cluster(access, Metrics()) as cluster:
        one.applier = Applier(cluster, one.store.cache, LABELS, complete=("Service",))
        yield one
    await runner.cleanup()


async def test_what_the_run_made_goes(world: World) -> None:
    world.make("Service", "a", "run", 3)
    world.make("StatefulSet", "b", "run", 4)
    await world.remove()
    assert not world.there
    assert world.store.cache.get(Key("StatefulSet", "n", "r-syncer")) is None


@pytest.mark.parametrize("owner", ["", "theirs"], ids=["of-nobody", "of-others"])
async def test_what_others_made_under_a_name_of_the_run_outlives_its_resyncs(
    world: World, owner: str
) -> None:
    world.make("Service", "a", "run", 3)
    await world.remove()
    world.make("Service", "b", owner, 7)
    world.make("StatefulSet", "c", owner, 8)
    for _ in range(2):
        await world.remove()
    assert world.uids() == {"b", "c"}


async def test_a_successor_that_no_watch_has_told_of_yet_stays(world: World) -> None:
    world.make("Service", "a", "run", 3)
    world.make("Service", "b", "theirs", 5, seen=False)
    await world.remove()
    assert world.uids() == {"b"}


async def test_what_nobody_knows_is_not_deleted_by_its_name(world: World) -> None:
    world.make("StatefulSet", "a", "run", 3, seen=False)
    await world.remove()
    assert world.uids() == {"a"}


async def test_an_object_is_applied_once_and_again_after_any_change(world: World) -> None:
    service = thing("Service", "", "one", 0)
    metadata = service["metadata"]
    for field in ("uid", "resourceVersion", "generation"):
        del metadata[field]

    async def applied(body: Object) -> bool:
        before = len(world.applied)
        await world.applier.apply(body)
        return len(world.applied) > before

    assert await applied(service)
    assert not await applied(service)
    assert await applied({**service, "spec": {"clusterIP": "None"}})
    assert await applied(service)
    uid = {"uid": "r-syncer", "resourceVersion": "9"}
    world.store.put("Service", {**service, "metadata": metadata | uid})  # somebody changed it
    assert await applied(service)
