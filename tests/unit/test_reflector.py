"""The reflector against a small real HTTP server that lists, watches, refuses, forgets and breaks off."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from atoll_operator.kube import reflector as module
from atoll_operator.kube.credentials import Credentials
from atoll_operator.kube.reflector import Reflector
from atoll_operator.metrics.process import Metrics

Object = dict[str, Any]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def thing(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}}


def page(version: int, *names: str, token: str = "") -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        metadata = {"resourceVersion": str(version), "continue": token}
        return web.json_response({"metadata": metadata, "items": [thing(name, version) for name in names]})

    return answer


def refusal(status: int, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "the server says no"}, status=status, headers=headers)

    return answer


def stream(*events: tuple[str, Object], tail: bytes = b"", stay: bool = False) -> Answer:
    """A watch that tells of these events; then it ends, or stays open."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, body in events:
            line = json.dumps({"type": kind, "object": body}).encode() + b"\n"
            await response.write(line[:9])
            await response.write(line[9:])
        if tail:
            await response.write(tail)
        if stay:
            await asyncio.sleep(60)
        return response

    return answer


class World:
    """Answers in turn and then always the same, and what a sink came to know."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.otherwise = stream(stay=True)
        self.asked: list[dict[str, str]] = []
        self.accepted: list[str] = []
        self.known: dict[str, str] = {}
        self.port = 0
        self.reflector: Reflector | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.accepted.append(request.headers["Accept"])
        return await (self.answers.pop(0) if self.answers else self.otherwise)(request)

    def seen(self, body: Object) -> None:
        self.known[body["metadata"]["name"]] = body["metadata"]["resourceVersion"]

    def gone(self, body: Object) -> None:
        self.known.pop(body["metadata"]["name"], None)

    def listed(self, names, version: int) -> None:
        self.known = {name: known for name, known in self.known.items() if ("n", name) in names}

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not check():
                await asyncio.sleep(0.005)

    async def follow(self, *answers: Answer, asked: int, contents: bool = True) -> Reflector:
        """Runs a reflector until so many requests were made."""
        self.answers = list(answers)
        access = Credentials(f"http://127.0.0.1:{self.port}", ssl.create_default_context())
        self.reflector = Reflector(access, Metrics(), "/api/v1/pods", "a=b", self, contents)
        self.task = asyncio.create_task(self.reflector.run())
        await self.until(lambda: len(self.asked) >= asked and not self.answers)
        return self.reflector


@pytest.fixture
async def world(monkeypatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "BACK_OFF_SECONDS", 0.001)
    one = World()
    application = web.Application()
    application.router.add_get("/api/v1/pods", one.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.port = runner.addresses[0][1]
    yield one
    if one.reflector is not None:
        one.task.cancel()
        await asyncio.wait([one.task])
    await runner.cleanup()


async def test_an_object_that_nobody_can_read_is_left_out_and_named_and_the_others_are_seen(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def seen(body: Object) -> None:
        if body["metadata"]["name"] == "odd":
            int("²")
        World.seen(world, body)

    world.seen = seen  # type: ignore[method-assign]
    events = stream(("ADDED", thing("odd", 8)), ("ADDED", thing("c", 9)), stay=True)
    await world.follow(page(7, "odd", "a"), events, asked=2)
    await world.until(lambda: world.known == {"a": "7", "c": "9"})
    told = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(told) == 2 and len(world.asked) == 2


async def test_a_list_in_pages_is_followed_by_a_watch_from_its_version(world: World) -> None:
    events = stream(
        ("ADDED", thing("c", 8)), ("DELETED", thing("a", 9)), ("MODIFIED", thing("b", 10)), stay=True
    )
    reflector = await world.follow(page(7, "a", token="more"), page(7, "b"), events, asked=3)
    await world.until(lambda: world.known == {"b": "10", "c": "8"})
    first, second, watch = world.asked
    assert (first["labelSelector"], "continue" in first, second["continue"]) == ("a=b", False, "more")
    assert (watch["watch"], watch["resourceVersion"], watch["allowWatchBookmarks"]) == ("1", "7", "true")
    assert reflector.filled.is_set() and not reflector.refusal


async def test_of_secrets_metadata_alone_is_asked_for_and_none_at_all_is_an_answer(world: World) -> None:
    async def nothing(_: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": None})

    reflector = await world.follow(nothing, asked=2, contents=False)
    assert reflector.filled.is_set() and world.known == {}
    assert world.accepted == [
        f"application/json;as={kind};g=meta.k8s.io;v=v1"
        for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
    ]


async def test_a_watch_that_ends_is_resumed_after_the_last_bookmark_without_a_list(world: World) -> None:
    bookmark = ("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    await world.follow(page(7, "a"), stream(("MODIFIED", thing("a", 9)), bookmark), asked=3)
    assert [query.get("resourceVersion") for query in world.asked] == [None, "7", "20"]
    assert world.known == {"a": "9"}


async def test_an_event_that_breaks_off_is_told_again_and_not_taken_for_whole(world: World) -> None:
    broken = json.dumps({"type": "ADDED", "object": thing("b", 8)}).encode()[:-2]
    again = stream(("ADDED", thing("b", 8)), stay=True)
    await world.follow(page(7, "a"), stream(tail=broken), again, asked=3)
    await world.until(lambda: world.known == {"a": "7", "b": "8"})
    assert world.asked[2]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    "expired",
    [
        pytest.param(stream(("ERROR", {"code": 410, "message": "too old"})), id="in-the-stream"),
        pytest.param(refusal(410), id="at-once"),
    ],
)
async def test_a_version_that_is_too_old_leads_to_a_list_and_what_it_lacks_is_gone(
    world: World, expired
) -> None:
    await world.follow(page(7, "a", "b"), expired, page(30, "b", "c"), asked=4)
    assert world.known == {"b": "30", "c": "30"}
    assert world.asked[3]["resourceVersion"] == "30"


async def test_a_token_of_a_page_that_is_too_old_begins_the_list_anew(world: World) -> None:
    await world.follow(page(7, "a", token="old"), refusal(410), page(9, "b"), asked=4)
    assert world.known == {"b": "9"}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_is_named_until_the_right_is_given(world: World, status: int) -> None:
    opened, world.otherwise = world.otherwise, refusal(status)
    reflector = await world.follow(asked=1)
    await world.until(lambda: bool(reflector.refusal))
    assert reflector.refusal == f"/api/v1/pods: {status}: the server says no"
    assert not reflector.filled.is_set()
    world.answers, world.otherwise = [page(7, "a")], opened
    await world.until(lambda: reflector.filled.is_set() and not reflector.refusal)
    assert world.known == {"a": "7"}


async def test_an_api_server_that_is_ill_is_asked_again_and_is_no_matter_of_rights(world: World) -> None:
    reflector = await world.follow(refusal(500), refusal(503), page(7, "a"), asked=4)
    assert world.known == {"a": "7"} and not reflector.refusal


async def test_only_a_watch_makes_the_tries_after_it_quick_again_and_no_failure_however_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    monkeypatch.setattr(module, "STEADY_SECONDS", 0.0)  # as if every try lasted long
    monkeypatch.setattr(module, "_back_off", lambda count: failures.append(count) or 0.0)
    refused, watched = refusal(504), stream()
    await world.follow(refused, refused, page(7, "a"), refused, watched, refused, asked=7)
    assert failures == [1, 2, 3, 0, 1]


async def test_a_server_that_asks_for_patience_gets_it(world: World) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.follow(refusal(429, **{"Retry-After": "1"}), page(7, "a"), asked=3)
    assert loop.time() - began >= 1
