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

from atoll_operator.kube import recorder as recorder_module
from atoll_operator.kube.apply import Applier, check_owner
from atoll_operator.kube.cache import Cache, Key, Object
from atoll_operator.kube.errors import Refused, Retry
from atoll_operator.kube.logs import LOG
from atoll_operator.kube.recorder import Recorder
from atoll_operator.plan.conditions import Notice

OURS = {"app.kubernetes.io/managed-by": "atoll"}
SERVICE, SECRET = Key("Service", "ns", "x"), Key("Secret", "ns", "x")


class World:
    """An API server, and an operator that has heard of some of its objects."""

    def __init__(self) -> None:
        self.server = Server(random.Random(0))
        self.client = MemoryCluster(self.server)
        self.cache = Cache({}, {})
        self.applier = Applier(self.client, self.cache, OURS, complete=("Service",))

    def put(self, key: Key, owner: str = "", seen: bool = True) -> Object:
        """Somebody writes an object in the place of another; `seen`: the watch tells of it."""
        self.server.objects.pop(key, None)
        body = self.server.create(owned(key, owner))
        if seen:
            self.cache.put(key.kind, copy.deepcopy(body))
        return body

    async def applied(self, body: Object) -> bool:
        before = self.client.writes
        await self.applier.apply(body)
        return self.client.writes > before


def owned(key: Key, owner: str, **parts: object) -> Object:
    references = [{"kind": "TrainingRun", "uid": owner, "controller": True}] if owner else []
    metadata = {"name": key.name, "namespace": key.namespace, "labels": OURS, "ownerReferences": references}
    return {"kind": key.kind, "metadata": metadata, **parts}


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


@pytest.mark.parametrize(
    ("owner", "labels", "inherit", "expected"),
    [
        pytest.param("mine", {}, False, None, id="ours"),
        pytest.param("", {}, False, Refused, id="of-nobody"),
        pytest.param("theirs", {}, False, Refused, id="of-others"),
        pytest.param("earlier", OURS, False, Retry, id="of-an-earlier-unit"),
        pytest.param("earlier", OURS, True, None, id="inherited"),
        pytest.param("theirs", {}, True, Refused, id="of-others-is-not-inherited"),
        pytest.param("", OURS, True, Refused, id="of-nobody-is-not-inherited"),
    ],
)
def test_an_object_that_is_not_ours_is_refused(owner: str, labels: Any, inherit: bool, expected: Any) -> None:
    found = owned(SERVICE, owner)
    found["metadata"]["labels"] = labels
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        check_owner(found, {"kind": "LearnerUnit", "uid": "mine"}, OURS, inherit)


def test_events_beyond_those_that_may_wait_stand_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(recorder_module, "REMEMBERED", 4)
    world = World()

    async def work() -> None:
        recorder = Recorder(world.client, "o")
        unit = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "ns", "uid": "u"}}
        for wave in (7, 4):
            notices = [Notice("Normal", "Healed", f"{wave}/{n}", f"{wave}/{n}") for n in range(wave)]
            recorder.record(unit, [*notices, notices[-1]], 0.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(recorder.run(), 10)

    with caplog.at_level(logging.INFO):
        leap(work())
    told = [event["message"] for event in world.server.every("Event")]
    assert told == ["7/3", "7/4", "7/5", "7/6", "4/0", "4/1", "4/2", "4/3"]
    logged = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    assert logged == [f"{wave}/{n}" for wave in (7, 4) for n in range(wave)]
