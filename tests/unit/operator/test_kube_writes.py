"""What the operator writes: owned objects and Events, to an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import random
from typing import Any

import pytest
from leaping import leap
from memory_apiserver import Server
from memory_client import MemoryCluster

from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Cache, Key, Object
from atoll_operator.kube.errors import Refused, Retry
from atoll_operator.kube.logs import LOG
from atoll_operator.kube.recorder import Recorder
from atoll_operator.plan.conditions import Notice

SERVICE, SECRET = Key("Service", "ns", "x"), Key("Secret", "ns", "x")


class World:
    """An API server, and an operator that has heard of some of its objects."""

    def __init__(self) -> None:
        self.server = Server(random.Random(0))
        self.client = MemoryCluster(self.server)
        self.cache = Cache({}, {})
        self.applier = Applier(self.client, self.cache, fixed=("Service",))

    def put(self, key: Key, owner: str = "", name: str = "r", seen: bool = True) -> Object:
        """Somebody writes an object in the place of another; `seen`: the watch tells of it."""
        self.server.objects.pop(key, None)
        body = self.server.create(owned(key, owner, name))
        if seen:
            self.cache.put(key.kind, copy.deepcopy(body))
        return body

    async def applied(self, body: Object) -> bool:
        before = self.client.writes
        await self.applier.apply(body)
        return self.client.writes > before


def owned(key: Key, owner: str, name: str = "r", **parts: object) -> Object:
    references = [{"kind": "TrainingRun", "name": name, "uid": owner, "controller": True}] if owner else []
    metadata = {"name": key.name, "namespace": key.namespace, "ownerReferences": references}
    return {"kind": key.kind, "metadata": metadata, **parts}


WHOSE = {"ours": "run", "of others": "theirs", "of nobody": "", "of an earlier run": "earlier"}
"""The controller's uid."""


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("key", [SERVICE, SECRET], ids=["fixed", "not-fixed"])
async def test_an_object_is_applied_if_it_is_ours_and_a_fixed_one_of_an_earlier_run_is_inherited(
    key: Key, whose: str, seen: bool
) -> None:
    world, uid, earlier = World(), WHOSE[whose], whose == "of an earlier run"
    world.put(key, uid, "other" if whose == "of others" else "r", seen=seen)
    ours = whose == "ours" or (earlier and key == SERVICE)
    with contextlib.nullcontext() if ours else pytest.raises(Retry if earlier else Refused):
        await world.applier.apply(owned(key, "run", spec={"a": 1}))
    found = world.server.get(*key[::2])
    assert found.get("spec") == ({"a": 1} if ours else None)
    owners = {each["uid"] for each in found["metadata"]["ownerReferences"]}
    assert owners == ({"run"} if ours else {uid} - {""})


async def test_an_object_is_applied_once_and_again_after_any_change() -> None:
    world, body, other = World(), owned(SECRET, "run"), owned(SECRET, "run", data={"a": "b"})
    assert await world.applied(body) and not await world.applied(body)
    assert await world.applied(other) and await world.applied(body)
    world.cache.put("Secret", world.server.change(world.server.get(*SECRET[::2]) | {"data": {"c": "d"}}))
    assert await world.applied(body) and not await world.applied(body)
    world.cache.delete(SECRET, world.server.objects[SECRET]["metadata"]["uid"])
    assert await world.applied(body)


@pytest.mark.parametrize(
    ("known", "successor", "left"),
    [
        pytest.param("run", None, [], id="ours"),
        pytest.param("theirs", None, ["theirs"], id="of-others"),
        pytest.param("run", "theirs", ["theirs"], id="a-successor-that-no-watch-has-told-of"),
        pytest.param(None, "run", ["run"], id="what-nobody-knows"),
    ],
)
async def test_only_what_is_ours_is_deleted(known: Any, successor: Any, left: list[str]) -> None:
    world = World()
    for owner, seen in ((known, True), (successor, False)):
        if owner is not None:
            world.put(SERVICE, owner, seen=seen)
    await world.applier.remove("run", SERVICE)
    assert [body["metadata"]["ownerReferences"][0]["uid"] for body in world.server.every("Service")] == left
    assert (world.cache.get(SERVICE) is None) is (known != "theirs")


def test_an_occasion_is_told_once_in_an_event_and_in_the_log(caplog: Any) -> None:
    world, unit = World(), {"apiVersion": "v1", "kind": "Thing", **owned(SERVICE, "")}
    unit["metadata"]["uid"] = "u"

    async def work() -> None:
        for _ in range(2):  # another operator remembers nothing
            recorder = Recorder(world.client, "o")
            for number in (1, 2, 1):
                recorder.record(unit, [Notice("Normal", "Healed", "x" * number * 999, f"{number}")], 0.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(recorder.run(), 10)

    with caplog.at_level(logging.INFO):
        leap(work())
    assert [len(event["message"]) for event in world.server.every("Event")] == [999, 1024]
    logged = [len(record.getMessage()) for record in caplog.records if record.name == LOG.name]
    assert logged == [999, 1998] * 2
