"""What the applier deletes: only what its owner made, whatever name that has. Against a small real HTTP server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.keys import Key
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.run.plan import Reference
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
            await self.applier.remove("run", "n", Reference(kind, "r-syncer"))

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
        one.applier = Applier(cluster, one.store.cache, LABELS)
        yield one
    await runner.cleanup()


async def test_what_the_run_made_goes(world: World) -> None:
    world.make("Service", "a", "run", 3)
    world.make("StatefulSet", "b", "run", 4)
    await world.remove()
    assert not world.there
    assert world.store.cache.version(Key("StatefulSet", "n", "r-syncer")) is None


@pytest.mark.parametrize("owner", ["", "theirs"], ids=["of-nobody", "of-others"])
async def test_what_others_made_under_a_name_of_the_run_outlives_its_resyncs(
    world: World, owner: str
) -> None:
    world.make("Service", "a", "run", 3)
    await world.remove()
    world.make("Service", "b", owner, 7)
    world.make("StatefulSet", "c", owner, 8)
    for _ in range(2):
        world.applier.forget("run")
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


async def test_the_review_of_one_owner_has_nothing_of_another_applied_again(world: World) -> None:
    services = {owner: thing("Service", "", owner, 0) for owner in ("one", "two")}
    for owner, service in services.items():
        service["metadata"] = {
            "name": owner,
            "namespace": "n",
            "labels": {"atoll.dev/run": "r"},
            "ownerReferences": service["metadata"]["ownerReferences"],
        }

    async def applied() -> list[str]:
        world.applied.clear()
        for owner, service in services.items():
            await world.applier.apply(owner, service)
        return world.applied

    assert await applied() == ["one", "two"]
    world.applier.forget("one")
    assert await applied() == ["one"]
    assert await applied() == []
