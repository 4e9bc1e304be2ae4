"""What the operator writes: owned objects and Events, to an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from typing import Any, cast

import pytest
from leaping import leap

from atoll_operator.kube import recorder as recorder_module
from atoll_operator.kube.apply import Applier, check_owner
from atoll_operator.kube.cache import Cache, Key, Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry
from atoll_operator.kube.logs import LOG
from atoll_operator.kube.recorder import Recorder
from atoll_operator.plan.conditions import Notice

OURS = {"app.kubernetes.io/managed-by": "atoll"}
SERVICE, SECRET = Key("Service", "n", "x"), Key("Secret", "n", "x")
SECONDS = 10.0


class Server:
    """As much of an API server as these writes need; each write takes 0.1 s."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.writes: list[str] = []
        self.version = 0
        self.cache = Cache({}, {})
        self.applier = Applier(cast(ApiClient, self), self.cache, OURS, complete=("Service",))

    def put(self, key: Key, owner: str = "", uid: str = "", seen: bool = True, **parts: Any) -> Object:
        """Somebody writes an object; `seen`: the watch tells of it."""
        self.version += 1
        body = {**owned(key, owner), **parts}
        body["metadata"] |= {"uid": uid or f"{owner}'s", "resourceVersion": str(self.version)}
        self.objects[key] = body
        if seen:
            self.cache.put(key.kind, copy.deepcopy(body))
        return copy.deepcopy(body)

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        if (key := Key(kind, namespace, name)) not in self.objects:
            raise NotFound(404, "NotFound", "it is not there")
        return copy.deepcopy(self.objects[key])

    async def apply(self, body: Object) -> Object:
        key, owner = Key(body["kind"], "n", body["metadata"]["name"]), body["metadata"]["ownerReferences"][0]
        self.writes.append("apply")
        return self.put(key, owner["uid"], seen=False)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        found = await self.get(kind, namespace, name)
        if found["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "another object")
        del self.objects[Key(kind, namespace, name)]

    async def create(self, body: Object) -> Object:
        await asyncio.sleep(0.1)
        self.writes.append(body["message"])
        return body


def owned(key: Key, owner: str) -> Object:
    references = [{"kind": "TrainingRun", "uid": owner, "controller": True}] if owner else []
    metadata = {"name": key.name, "namespace": key.namespace, "labels": OURS, "ownerReferences": references}
    return {"kind": key.kind, "metadata": metadata}


async def test_an_object_is_applied_once_and_again_after_any_change() -> None:
    server = Server()

    async def applied(body: Object) -> bool:
        before = len(server.writes)
        await server.applier.apply(body)
        return len(server.writes) > before

    body = owned(SECRET, "run")
    assert await applied(body) and not await applied(body)
    assert await applied({**body, "data": {"a": "b"}}) and await applied(body)
    server.put(SECRET, "run")
    assert await applied(body) and not await applied(body)
    server.cache.delete("Secret", server.objects[SECRET])
    assert await applied(body)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not-seen"])
@pytest.mark.parametrize("owner", ["", "theirs"], ids=["of-nobody", "of-others"])
async def test_an_object_of_others_is_neither_changed_nor_deleted(owner: str, seen: bool) -> None:
    server = Server()
    before = server.put(SECRET, owner, seen=seen)
    before["metadata"]["labels"] = server.objects[SECRET]["metadata"]["labels"] = {}
    with pytest.raises(Refused, match="Secret 'x' is not the TrainingRun's: delete it, or use another name"):
        await server.applier.apply(owned(SECRET, "run"))
    await server.applier.remove("run", SECRET)
    assert server.objects[SECRET] == before


@pytest.mark.parametrize(
    ("known", "successor", "left"),
    [
        pytest.param("run", None, None, id="ours"),
        pytest.param("run", "theirs", "theirs's", id="a-successor-that-no-watch-has-told-of"),
        pytest.param(None, "run", "run's", id="what-nobody-knows"),
    ],
)
async def test_only_the_object_that_is_known_to_be_ours_is_deleted(
    known: str | None, successor: str | None, left: str | None
) -> None:
    server = Server()
    for owner, seen in ((known, True), (successor, False)):
        if owner is not None:
            server.put(SERVICE, owner, seen=seen)
    await server.applier.remove("run", SERVICE)
    assert (server.objects[SERVICE]["metadata"]["uid"] if SERVICE in server.objects else None) == left
    assert server.cache.get(SERVICE) is None


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
def test_an_object_that_is_not_ours_is_refused(
    owner: str, labels: dict[str, str], inherit: bool, expected: type[Exception] | None
) -> None:
    found = owned(SERVICE, owner)
    found["metadata"]["labels"] = labels
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        check_owner(found, "Service", {"kind": "LearnerUnit", "uid": "mine"}, OURS, inherit)


def test_events_beyond_those_that_may_wait_are_dropped_and_counted_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "REMEMBERED", 4)
    server = Server()

    async def work() -> None:
        recorder = Recorder(cast(ApiClient, server), "o")
        unit = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "n", "uid": "u"}}
        for wave in (7, 4):
            notices = [Notice("Normal", "Healed", f"{wave}/{n}", f"{wave}/{n}") for n in range(wave)]
            recorder.tell(unit, [*notices, notices[-1]], 0.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(recorder.run(), 10)

    with caplog.at_level(logging.WARNING):
        leap(work())
    assert server.writes == ["7/3", "7/4", "7/5", "7/6", "4/0", "4/1", "4/2", "4/3"]
    assert [record.fields for record in caplog.records if record.name == LOG.name] == [{"events": 3}]
