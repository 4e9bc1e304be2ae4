"""The watches with kopf in its thread, against a small HTTP server that plays an API server with pods alone."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from answering import LoopThread, answering
from leaping import leap

from atoll_operator.kube import events, watches
from atoll_operator.kube.cache import Cache, Change, Key
from atoll_operator.kube.client import ApiClient, Resource
from atoll_operator.kube.errors import Restored, Retry
from atoll_operator.kube.events import Feed, Waits, Watch
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.queue import WorkQueue, until_first
from atoll_operator.operator import App
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.wakeups import Dispatcher
from atoll_operator.settings import Settings

PODS = "/api/v1/namespaces/n/pods"
Object = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class World:
    """An API server, and what the watches report of it."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.version = 0
        self.served = True
        self.token = "good"
        self.hangs: list[float] = []
        """Seconds for which the next logins block their thread."""
        self.refusals: list[tuple[int, str]] = []
        """Answers to the next requests for pods."""
        self.asked: list[str] = []
        """Accept header of each list."""
        self.cache = Cache({"Pod": self._read}, {})
        self.told: list[str] = []
        """Names of what changed, in order."""
        self.unreadable = ""
        self.slow = 0.0
        """Seconds for which each object hangs the main loop."""
        self.pages: list[int] = []
        """For each object, how many pages had been asked for when the main loop had taken it."""
        self.serve: Callable[[Handler], AbstractAsyncContextManager[str]] = answering
        self.errors: list[str] = []
        self._streams: set[web.StreamResponse] = set()
        self._over = asyncio.Event()

    def create(self, name: str) -> Object:
        self.version += 1
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(self.version)}
        self.pods[name] = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}
        return self.pods[name]

    async def send(self, *events: tuple[str, Object]) -> None:
        """All together."""
        lines = [json.dumps({"type": event, "object": body}).encode() + b"\n" for event, body in events]
        for stream in list(self._streams):
            await stream.write(b"".join(lines))
        if events[0][0] == "ERROR":
            self._streams.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer good":
            self.refusals.append((401, "Unauthorized"))
        if request.path == "/api/v1":
            kinds = [("Namespace", False), *([("Pod", True)] if self.served else [])]
            return web.json_response({"resources": [_resource(*kind) for kind in kinds]})
        if request.path != PODS:
            return web.json_response({"groups": [], "resources": [], "versions": ["v1"]})
        if self.refusals:
            status, message = self.refusals.pop(0)
            return web.json_response({"kind": "Status", "message": message, "code": status}, status=status)
        if "watch" in request.query:
            return await self._stream(request)
        self.asked.append(request.headers["Accept"].partition(";")[2])
        first, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        metadata = {"resourceVersion": str(self.version)}
        if first + limit < len(self.pods):
            metadata["continue"] = str(first + limit)
        items = list(self.pods.values())[first : first + limit]
        answer = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata}
        return web.json_response(answer | {"items": items or None})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        self._streams.add(stream)
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                await self._over.wait()
        except TimeoutError:
            pass
        finally:
            self._streams.discard(stream)
        return stream

    def _read(self, body: Object, _: Any) -> None:
        if body["metadata"]["name"] == self.unreadable:
            raise KeyError("spec")
        time.sleep(self.slow)
        self.pages.append(len(self.asked))

    def _changed(self, change: Change) -> None:
        self.told.append(change.key.name)

    @property
    def known(self) -> set[str]:
        return {key.name for key in self.cache.keys("Pod")}

    def feed(self, client: ApiClient, *kinds: Watch) -> Feed:
        return Feed(client, kinds, ["n"], self.cache, self._changed, lambda _: None)

    def _login(self) -> dict[str, str]:
        if self.hangs and threading.current_thread().name == "kopf":
            time.sleep(self.hangs.pop())
        return {"Authorization": f"Bearer {self.token}"}

    @asynccontextmanager
    async def watched(self, resync_seconds: float = 300, *ends: type[Exception]) -> AsyncIterator[Feed]:
        """`ends`: what ends the watches."""
        async with self.serve(self.handle) as address:
            access = Credentials(address, ssl.create_default_context(), self._login)
            resources = {"Pod": Resource("", "v1", "pods")}
            async with ApiClient(access, resources, "atoll", self.errors.append) as client:
                feed = self.feed(client, Watch("Pod", metadata=True))
                running = asyncio.create_task(watches.watch(feed, resync_seconds))
                try:
                    yield feed
                    for error in ends:
                        with pytest.raises(error):
                            await asyncio.wait_for(asyncio.shield(running), 20)
                finally:
                    self._over.set()
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)

    async def watching(self, names: set[str]) -> None:
        """Waits until a stream is open and these pods are known."""
        await until(lambda: self._streams and self.known == names)


@asynccontextmanager
async def in_a_thread(handle: Handler) -> AsyncIterator[str]:
    """A server that answers also while the main loop hangs."""
    thread = LoopThread("server")
    try:
        yield thread.enter(answering(handle))
    finally:
        thread.close()


def some_feed(namespaces: list[str], *kinds: Watch, listed: Callable[..., object] = print) -> Feed:
    """A feed that nothing feeds."""
    resources = {kind: Resource("", "v1", f"{kind.lower()}s") for kind in ("Pod", "Secret", "Node")}
    client = ApiClient(Credentials("", ssl.create_default_context()), resources, "atoll", [].append)
    return Feed(client, kinds, namespaces, Cache({}, {}), print, listed)


def _resource(kind: str, namespaced: bool) -> Object:
    name = kind.lower()
    resource = {"name": f"{name}s", "singularName": name, "kind": kind, "namespaced": namespaced}
    return {**resource, "verbs": ["list", "watch"]}


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(events, "PAGE", 2)
    one = World()
    for name in ("a", "b", "c"):
        one.create(name)
    return one


async def test_each_state_is_told_once_and_none_that_is_known_already(world: World) -> None:
    async with world.watched() as feed:
        await feed.filled.wait()
        await world.watching({"a", "b", "c"})
        written = world.create("d")
        world.cache.put("Pod", written)  # the answer to a write
        changed = ("MODIFIED", world.create("b")), ("DELETED", world.pods["a"])
        await world.send(("ADDED", written), *changed)
        await until(lambda: world.known == {"b", "c", "d"})
    assert world.told == ["a", "b", "c", "b", "a"]
    assert world.asked == ["as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"] * 2, "one for each page"


@pytest.mark.parametrize("code", [410, 500])
async def test_what_was_deleted_while_a_stream_was_broken_is_found_by_a_list(world: World, code: int) -> None:
    async with world.watched():
        await world.watching({"a", "b", "c"})
        del world.pods["b"]
        await world.send(("ERROR", {"kind": "Status", "code": code, "message": "it broke"}))
        await world.watching({"a", "c"})
        world.create("d")
        await until(lambda: world._streams)
        await world.send(("ADDED", world.pods["d"]))
        await until(lambda: world.known == {"a", "c", "d"})


async def test_an_object_whose_label_is_put_back_is_known_again(world: World) -> None:
    """For a watch with a selector, the API server tells that it was deleted and added, with the same uid."""
    async with world.watched():
        await world.watching({"a", "b", "c"})
        await world.send(("DELETED", world.create("b")))
        await until(lambda: world.known == {"a", "c"})
        await world.send(("ADDED", world.create("b")))
        await until(lambda: world.known == {"a", "b", "c"})


async def test_a_deletion_that_no_event_told_of_is_found_by_a_resync(world: World) -> None:
    async with world.watched(resync_seconds=0.2):
        await world.watching({"a", "b", "c"})
        del world.pods["c"]
        world.refusals = [(403, "pods is forbidden")]  # and by the one after it
        await until(lambda: world.known == {"a", "b"})


async def test_a_resync_whose_lists_fail_is_soon_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "PAUSE_SECONDS", 0.1)
    async with world.watched(resync_seconds=300) as feed:
        await world.watching({"a", "b", "c"})
        del world.pods["c"]
        world.refusals = [(503, "not ready")] * 8
        feed.back.set()
        await until(lambda: world.known == {"a", "b"})


async def test_a_resync_that_succeeds_says_nothing_of_a_watch_that_is_down(world: World) -> None:
    async with world.watched(resync_seconds=0.2) as feed:
        await world.watching({"a", "b", "c"})
        feed.outcome(PODS, "forbidden", True)
        lists = len(world.asked)
        await until(lambda: len(world.asked) > lists + 4)
        assert feed.refusal == f"{PODS}: forbidden" and not feed.back.is_set()


async def test_a_page_of_a_list_is_asked_for_when_the_one_before_is_taken(world: World) -> None:
    world.serve, world.slow = in_a_thread, 0.2
    async with world.watched() as feed:
        await feed.filled.wait()
    assert world.pages == [1, 1, 2]


async def test_a_list_does_not_wait_for_a_main_loop_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "TAKE_SECONDS", 0.01)
    feed = some_feed(["n"])
    feed._main = asyncio.new_event_loop()
    feed._main.close()
    await asyncio.wait_for(feed.taken(), 20)


async def test_a_resync_that_is_cancelled_just_when_an_outage_is_over_ends() -> None:
    feed = some_feed(["n"])
    running = asyncio.create_task(watches._resync(feed, 300))
    for _ in range(2):  # it waits
        await asyncio.sleep(0)
    feed.back.set()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running}, timeout=20)
    assert running.cancelled()


@pytest.mark.parametrize("later", [0, 100])
async def test_an_earlier_state_after_a_restore_of_etcd_ends_the_watches(world: World, later: int) -> None:
    """A list shows it: by its version, or by an object's if more was written since than was lost."""
    async with world.watched(0.5, Restored):
        await world.watching({"a", "b", "c"})
        before = copy.deepcopy((world.pods, world.version))
        for name in ("a", "d"):
            world.create(name)
            await world.send(("MODIFIED", world.pods[name]))
        await world.watching({"a", "b", "c", "d"})
        world.pods, world.version = before[0], before[1] + later
        await world.send(("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))


@pytest.mark.parametrize(("status", "refusal"), [(403, f"{PODS}: pods is forbidden"), (503, "")])
async def test_a_list_that_fails_is_tried_again_and_shown(world: World, status: int, refusal: str) -> None:
    world.refusals = [(status, "pods is forbidden")] * 2
    async with world.watched() as feed:
        await until(lambda: world.errors and feed.refusal == refusal)
        assert not feed.filled.is_set()
        await asyncio.wait_for(feed.filled.wait(), 20)
        assert feed.refusal == ""
    assert world.errors == [str(status)] * 2


async def test_a_namespace_is_known_when_its_own_collections_and_those_of_the_cluster_are_listed() -> None:
    known: list[list[str]] = []
    kinds = Watch("Pod"), Watch("Secret"), Watch("Node", cluster_scoped=True)
    feed = some_feed(["a", "b"], *kinds, listed=lambda new: known.append(sorted(new)))
    for kind, namespace in [("Pod", "a"), ("Pod", "b"), ("Secret", "b"), ("Node", ""), ("Secret", "a")]:
        watch = next(
            each for each in feed.watches.values() if (each.kind, each.namespace) == (kind, namespace)
        )
        feed.listed(watch, (), 1)
        assert [feed.knows("a"), feed.knows("b")] == [["a"] in known, ["b"] in known]
        assert feed.filled.is_set() == bool(known)
    assert known == [["b"], ["a"]]


A, B, NODES = "/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods", "/api/v1/nodes"


@pytest.mark.parametrize(
    ("listed", "refused", "ready", "text"),
    [
        ([], [], False, "the watches have not started yet"),
        ([A, NODES], [], True, "ok, stands by"),
        ([A, NODES], [B], True, f"may not watch {B}: forbidden"),
        ([A, B, NODES], [B], True, f"may not watch {B}: forbidden"),
        ([A, B, NODES], [A, B], False, f"may not watch {A}: forbidden; {B}: forbidden"),
        ([A, B, NODES], [NODES], False, f"may not watch {NODES}: forbidden"),
        ([], [A], False, f"may not watch {A}: forbidden"),
    ],
)
async def test_an_operator_is_ready_while_it_may_watch_all_of_some_namespace(
    listed: list[str], refused: list[str], ready: bool, text: str
) -> None:
    app = App(Settings(runtime_image="i"), Credentials("", ssl.create_default_context()))
    feed = app._feed = some_feed(["a", "b"], Watch("Pod"), Watch("Node", cluster_scoped=True))
    for path in listed:
        feed.listed(feed.watches[path], (), 1)
    for path in refused:
        feed.outcome(path, "forbidden", True)
    assert app._ready() == (ready, text)


def test_keys_that_failed_wait_unless_watches_come_back_and_then_not_at_each_time() -> None:
    passes: list[float] = []
    key = Key("LearnerUnit", "n", "u")

    async def refused(_: Key) -> None:
        passes.append(asyncio.get_running_loop().time())
        raise Retry(60.0, "exceeded quota")

    async def work() -> None:
        dispatcher = Dispatcher(Inventory())
        queue = dispatcher.queue = WorkQueue(refused)
        feed = some_feed(["n"], Watch("Pod"), listed=dispatcher.listed)
        [watch] = feed.watches.values()
        feed.listed(watch, (), 1)
        queue.add(key)
        loop = asyncio.get_running_loop()
        for second in (10, 20):
            loop.call_at(second, feed.listed, watch, (), 1)
        loop.call_at(25, feed.unlisted.add, watch)  # a resync leaves it alone
        for second in range(30, 45):
            loop.call_at(second, feed.outcome, PODS, "it is down")
            loop.call_at(second + 0.5, feed.outcome, PODS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until_first(queue.run(), watches._resync(feed, 300)), 47)

    leap(work())
    assert [int(second) for second in passes] in ([0, 30, 40], [0, 30, 39], [0, 30, 41])


def test_each_request_of_kopf_has_waits_of_its_own() -> None:
    waits = Waits()
    assert [*waits] != [*waits]


async def test_an_expired_token_is_replaced_and_not_sent_again_and_again(world: World) -> None:
    world.token = "expired"
    async with world.watched() as feed:
        await until(lambda: "401" in world.errors)
        await asyncio.sleep(0.6)
        assert world.errors.count("401") <= 8
        world.token = "good"
        world.refusals = []
        await asyncio.wait_for(feed.filled.wait(), 20)
    assert world.known == {"a", "b", "c"}


async def test_a_kind_that_is_served_late_is_watched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SILENT_SECONDS", 1.0)
    world.served = False
    async with world.watched() as feed:
        await asyncio.sleep(0.5)
        assert not feed.filled.is_set()
        world.served = True
        await asyncio.wait_for(feed.filled.wait(), 20)


async def test_a_kopf_whose_loop_hangs_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WATCH_SECONDS", 1)
    monkeypatch.setattr(watches, "SILENT_SECONDS", 2.0)
    async with world.watched():
        await world.watching({"a", "b", "c"})
        world.hangs, began = [8.0], time.monotonic()
        del world.pods["b"]
        await world.send(("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))
        await world.watching({"a", "c"})
        assert time.monotonic() - began < 8.0


def test_a_kopf_that_ends_again_and_again_is_started_with_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[float] = []

    class Ends:
        def __init__(self, *_: Any) -> None:
            loop = asyncio.get_running_loop()
            starts.append(loop.time())
            self.ended = loop.create_future()
            self.ended.set_result("it ended")

        def stop(self) -> None: ...

    async def work() -> None:
        client = ApiClient(Credentials("", ssl.create_default_context()), {}, "atoll", [].append)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(watches.watch(World().feed(client), 300), 20)

    monkeypatch.setattr(watches, "KopfThread", Ends)
    leap(work())
    waits = [after - before for before, after in itertools.pairwise(starts)]
    for wait, most in itertools.zip_longest(waits, (0.25, 0.5), fillvalue=1.0):
        assert 0.8 * most <= wait <= most
    assert len({round(wait, 3) for wait in waits[2:]}) > 5, "jitter"


async def test_an_object_that_cannot_be_read_is_skipped(world: World, caplog: Any) -> None:
    world.unreadable = "b"
    async with world.watched():
        await world.watching({"a", "c"})
    assert "cannot be read: KeyError" in caplog.text
