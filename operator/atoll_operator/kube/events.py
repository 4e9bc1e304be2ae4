"""Events of the watches: kopf in a thread with its own event loop, and the hand-over from there to the main loop. This
is the only file that imports kopf."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import kopf

from atoll_operator.kube.cache import Cache, Change, Key, Object, key_of, version_of
from atoll_operator.kube.client import PAGE, ApiClient
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import back_off

BACK_OFF = 0.25, 1.0
"""First and longest wait in seconds before the next try of a request, and before kopf is started again. Both are short,
because heals wait for the watches after an outage."""
WATCH_SECONDS = 40
"""A watch is opened again after this long, and continues after its last event."""
TAKE_SECONDS = 10.0
"""How long kopf's thread waits at most until the main loop has taken a page of a list."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A kind to watch, in the cluster or in one namespace."""

    kind: str
    selector: str = ""
    """Label selector, evaluated by the API server."""
    metadata: bool = False
    """Whether only the metadata of the objects is requested."""
    cluster_scoped: bool = False
    namespace: str = ""


News = tuple[str, bool, Object]
"""An object's kind, whether it was deleted, and its body."""


class Feed:
    """Puts into the cache what kopf and the resync see in these namespaces, or in the cluster if there are none.
    `changed` gets each change. `listed` is called with the namespaces of which all is known from now on, and with none
    when the API server answers again after a problem. All methods but `post` and `taken` belong to the main loop."""

    def __init__(
        self,
        client: ApiClient,
        watches: Iterable[Watch],
        namespaces: Collection[str],
        cache: Cache,
        changed: Callable[[Change], None],
        listed: Callable[[Collection[str]], None],
    ) -> None:
        self.client, self.namespaces, self.cache = client, namespaces, cache
        self._changed, self.when_listed = changed, listed
        self.watches = {
            client.resources[watch.kind].path(namespace): replace(watch, namespace=namespace)
            for watch in watches
            for namespace in ([""] if watch.cluster_scoped else namespaces or [""])
        }
        """By path."""
        self.filled = asyncio.Event()
        """Set when all collections of some namespace have been listed once."""
        self.back = asyncio.Event()
        """Set when a watch's request succeeds after a problem, because etcd may have been restored meanwhile."""
        self._main = asyncio.get_running_loop()
        self.unlisted = set(self.watches.values())
        """Collections that have not been listed yet."""
        self._problems: dict[str, tuple[str, bool]] = {}
        """By path: the message, and whether the API server refuses."""

    @property
    def refusal(self) -> str:
        """The watches that the API server refuses, in its words; empty if it refuses none."""
        return "; ".join(f"{path}: {text}" for path, (text, refused) in self._problems.items() if refused)

    @property
    def serves(self) -> bool:
        """Whether all of some namespace has been listed and may be watched."""
        refused = (each for path, each in self.watches.items() if self._problems.get(path, ("", False))[1])
        return not self._lacking((*self.unlisted, *refused)).issuperset(self.namespaces or [""])

    def event(self, kind: str, deleted: bool, body: Object) -> None:
        """The object has this state, or was deleted in this state. Skips an unreadable one, because users may create
        any."""
        try:
            metadata = body["metadata"]
            gone = key_of(kind, body), metadata["uid"], version_of(metadata)
            change = self.cache.delete(*gone) if deleted else self.cache.put(kind, body)
            if change is not None:
                self._changed(change)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            metadata = body.get("metadata", {})
            name = f"{kind} {metadata.get('namespace', '')}/{metadata.get('name', '')}"
            log(logging.ERROR, f"cannot be read: {type(error).__name__}: {error}", object=name)

    def listed(self, watch: Watch, present: Collection[Key], version: int) -> None:
        """Called after the events of a list at this resource version: what it does not have was deleted."""
        for change in self.cache.prune(self.cache.keys(watch.kind, watch.namespace), present, version):
            self._changed(change)
        unknown = self._lacking(self.unlisted)
        self.unlisted.discard(watch)
        if new := unknown - self._lacking(self.unlisted):
            self.filled.set()
            self.when_listed(new)

    def knows(self, namespace: str) -> bool:
        """Whether all that exists in the namespace has been listed."""
        return self._lacking(self.unlisted).isdisjoint(("", namespace))

    def _lacking(self, missing: Iterable[Watch]) -> set[str]:
        """Namespaces of which, or of the cluster, these collections are missing; "" is the whole cluster."""
        names = {each.namespace for each in missing}
        return set(self.namespaces or [""]) if "" in names else names

    def outcome(self, path: str, problem: str = "", refused: bool = False) -> None:
        """Logs each problem of kopf's requests for a path once. An empty one means that the request succeeded."""
        if not problem:
            if self._problems.pop(path, None):
                self.back.set()
        elif self._problems.get(path) != (problem, refused):
            self._problems[path] = problem, refused
            log(logging.WARNING, "a watch is down and will be tried again", path=path, error=problem)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls the function in the main loop, from kopf's thread; calls keep their order."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._main.call_soon_threadsafe(function, *arguments)

    async def taken(self) -> None:
        """Waits in kopf's thread until the main loop has done what was posted before, at most `TAKE_SECONDS`."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: kopf has ended
                loop.call_soon_threadsafe(done.set)

        self.post(tell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKE_SECONDS):
                await done.wait()


class Waits:
    """Seconds between the tries of a request, drawn anew for each: for 15 minutes, then kopf ends and starts again."""

    def __iter__(self) -> Iterator[float]:
        return (back_off(n, *BACK_OFF) for n in range(1, 1000))


class KopfThread:
    """One kopf operator, from its start to its end. `session` opens its HTTP session. That keeps the newest event of
    each object in `news`, by uid, until kopf handles an event."""

    def __init__(
        self, feed: Feed, session: Callable[[], aiohttp.ClientSession], news: dict[str, News]
    ) -> None:
        self._feed, self._session, self._news = feed, session, news
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Its result is why kopf ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        # A daemon, so that a hanging loop does not keep the process alive.
        threading.Thread(target=self._run, name="kopf", daemon=True).start()

    def stop(self) -> None:
        """Ends kopf without waiting for it. What it still reports is valid."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)

    # In kopf's thread:

    def _run(self) -> None:
        reason = "kopf ended"
        try:
            asyncio.run(self._operate())
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
        self._feed.post(self.ended.set_result, reason)

    async def _operate(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # for kopf's callbacks that are cut off
        stopping = asyncio.create_task(self._stopping.wait())
        async with self._session() as session:
            work = kopf.operator(
                registry=self._registry(session),
                identity="operator",  # type: ignore[arg-type] # otherwise kopf asks the system for the user's name
                standalone=True,
                clusterwide=not self._feed.namespaces,
                namespaces=self._feed.namespaces,
            )
            operator = asyncio.create_task(work)
            await asyncio.wait([operator, stopping], return_when=asyncio.FIRST_COMPLETED)
            # After one watch has failed, kopf's other watches wait for a new login. One cancellation does not end them.
            while not operator.done():
                for task in asyncio.all_tasks() - {asyncio.current_task(), operator}:
                    task.cancel()
                await asyncio.wait([operator], timeout=0.1)
            operator.result()

    def _registry(self, session: aiohttp.ClientSession) -> kopf.OperatorRegistry:
        registry, feed, resources = kopf.OperatorRegistry(), self._feed, self._feed.client.resources
        kinds = {watch.kind: watch.selector for watch in feed.watches.values()}

        @kopf.on.startup(registry=registry)
        async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
            settings.posting.enabled = False
            settings.scanning.disabled = True
            # Otherwise kopf kills the process ten minutes after kopf's own end.
            settings.process.ultimate_exiting_timeout = None
            settings.networking.request_timeout = 20
            settings.networking.connect_timeout = 5
            settings.networking.error_backoffs = Waits()
            settings.watching.server_timeout = WATCH_SECONDS
            settings.watching.chunk_size = PAGE
            for kind, selector in kinds.items():
                if selector:
                    settings.watching.label_selectors[*resources[kind]] = selector

        @kopf.on.cleanup(registry=registry)
        async def end(**_: Any) -> None:
            self._stopping.set()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.AiohttpSession:
            return kopf.AiohttpSession(server=feed.client.credentials.server, aiohttp_session=session)

        async def handle(**_: Any) -> None:
            # The session has reported listed objects, and gives kopf one event for all that arrives at a time.
            for news in self._news.values():
                feed.post(feed.event, *news)
            self._news.clear()

        for kind in kinds:
            kopf.on.event(*resources[kind], registry=registry)(handle)
        return registry


# The feed logs failed requests, and the supervisor the end of kopf.
logging.getLogger("kopf").setLevel(logging.CRITICAL)
