"""Runs kopf in a thread with an event loop of its own. This is the only file that imports kopf."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import aiohttp
import kopf

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.logs import tell
from atoll_operator.kube.session import BACK_OFF, KopfHttp, Names, Scope

INACTIVITY_SECONDS = 90.0
"""A watch is opened again after this long without an event; bookmarks come every minute."""
BATCH = 500
"""Events that are handled in one turn of the main loop."""
EXIT_SECONDS = 3.0


class Sink(Protocol):
    """Gets all events, in the main loop. It must not change the bodies: kopf still reads them in its thread."""

    def event(self, kind: str, deleted: bool, body: Object) -> None:
        """The object has this state, or was deleted in this state."""

    def listed(self, kind: str, namespace: str, names: Names, version: int) -> None:
        """A list of a namespace, or of the cluster, had these objects at this resource version."""


def deliver(sink: Sink, kind: str, deleted: bool, body: Object) -> None:
    """Passes an event on; skips an object that cannot be read, because anybody may create one."""
    try:
        sink.event(kind, deleted, body)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        metadata = body.get("metadata", {})
        name = f"{kind} {metadata.get('namespace', '')}/{metadata.get('name', '')}"
        tell(logging.ERROR, f"cannot be read: {type(error).__name__}: {error}", object=name)


class KopfThread:
    """One kopf operator, from its start to its end. Public methods and callbacks belong to the main loop.

    Args:
        client: says where the kinds are and how to log in.
        scopes: what to watch, by path.
        namespaces: empty for the whole cluster.
        listed: called with what a list had and its resource version, after each of its objects.
        outcome: see `KopfHttp`.
    """

    def __init__(
        self,
        client: ApiClient,
        scopes: Mapping[str, Scope],
        namespaces: Collection[str],
        sink: Sink,
        listed: Callable[[Scope, Names, int], None],
        outcome: Callable[[str, str, str], None],
    ) -> None:
        self._client, self._scopes, self._namespaces = client, scopes, namespaces
        self._sink, self._tell_listed, self._tell_outcome = sink, listed, outcome
        self.http = KopfHttp(client, scopes, self._page, self._outcome)
        self._main = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._main.create_future()
        """Its result is why kopf ended."""
        self.listed: set[str] = set()
        self.alive = time.monotonic()
        """When kopf's loop answered the last ping."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._buffer: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._draining = self._closed = False
        # A daemon, so that a hanging loop does not keep the process alive.
        threading.Thread(target=self._run, name="kopf", daemon=True).start()

    def ping(self) -> None:
        """Has kopf's loop update `alive`."""
        self._in_kopf(lambda: setattr(self, "alive", time.monotonic()))

    def stop(self) -> None:
        """Ends kopf without waiting for it. Its events are not passed on any more."""
        self._closed = True
        if self._stopping is not None:
            self._in_kopf(self._stopping.set)

    def _in_kopf(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    def _drain(self) -> None:
        self._draining = False
        for _ in range(BATCH):
            if self._closed or not self._buffer:
                return
            function, arguments = self._buffer.popleft()
            function(*arguments)
        self._draining = True
        self._main.call_soon(self._drain)

    def _list_ended(self, scope: Scope, names: Names, version: int) -> None:
        self.listed.add(scope.path)
        self._tell_listed(scope, names, version)

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    # In kopf's thread:

    def _in_main(self, function: Callable[..., object], *arguments: Any) -> None:
        self._buffer.append((function, arguments))
        if not self._draining:
            self._draining = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._main.call_soon_threadsafe(self._drain)

    def _page(self, scope: Scope, bodies: list[Object], names: Names | None, version: int) -> None:
        for body in bodies:
            self._in_main(deliver, self._sink, scope.watch.kind, False, body)
        if names is not None:
            self._in_main(self._list_ended, scope, names, version)

    def _outcome(self, path: str, code: str, text: str) -> None:
        if code:
            self._client.count_error(code)
        self._in_main(self._tell_outcome, path, code, text)

    def _run(self) -> None:
        reason = "kopf ended"
        try:
            asyncio.run(self._operate())
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
        self._in_main(self._end, reason)

    async def _operate(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: None)  # of kopf's callbacks that were cut off
        stopping = asyncio.create_task(self._stopping.wait())
        async with self.http.session() as session:
            work = kopf.operator(
                registry=self._registry(session, self._stopping),
                identity="operator",  # type: ignore[arg-type] # else kopf asks the system for the user's name
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
            )
            operator = asyncio.create_task(work)
            await asyncio.wait([operator, stopping], return_when=asyncio.FIRST_COMPLETED)
            # After one watch failed, kopf's other watches wait for a new login until they are cancelled.
            for task in asyncio.all_tasks() - {asyncio.current_task(), operator}:
                task.cancel()
            if (await asyncio.wait([operator], timeout=EXIT_SECONDS))[0]:
                operator.result()

    def _registry(self, session: aiohttp.ClientSession, stopping: asyncio.Event) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        watches = {scope.watch for scope in self._scopes.values()}

        @kopf.on.startup(registry=registry)
        async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
            settings.posting.enabled = False
            settings.scanning.disabled = True
            settings.peering.standalone = True
            settings.persistence.diffbase_storage = _NoDiffBase()
            # Else kopf kills the process ten minutes after its end.
            settings.process.ultimate_exiting_timeout = None
            settings.networking.request_timeout = 30
            settings.networking.connect_timeout = 5
            settings.networking.error_backoffs = _BackOffs()
            settings.watching.reconnect_backoff = 0.1
            settings.watching.inactivity_timeout = INACTIVITY_SECONDS
            for watch in watches:
                if watch.selector:
                    group, version, plural = self._client.resources[watch.kind]
                    settings.watching.label_selectors[group, version, plural] = watch.selector

        @kopf.on.cleanup(registry=registry)
        async def end(**_: Any) -> None:
            self._in_main(self._end, _ERRORS.last.pop(threading.get_ident(), "kopf ended"))
            stopping.set()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.AiohttpSession:
            return kopf.AiohttpSession(server=self._client.credentials.server, aiohttp_session=session)

        for watch in watches:
            self._handle(registry, watch.kind)
        return registry

    def _handle(self, registry: kopf.OperatorRegistry, kind: str) -> None:
        @kopf.on.event(*self._client.resources[kind], registry=registry)
        async def handle(event: Any, **_: Any) -> None:
            self._in_main(deliver, self._sink, kind, event["type"] == "DELETED", event["object"])


class _Errors(logging.Handler):
    """Keeps the last error with a traceback that kopf logged in each thread; `outcome` has all failed requests."""

    last: ClassVar[dict[int | None, str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.last[record.thread] = record.getMessage()


_ERRORS = _Errors()
logging.getLogger("kopf").addHandler(_ERRORS)
logging.getLogger("kopf").setLevel(logging.ERROR)
logging.getLogger("kopf").propagate = False


class _BackOffs:
    """Seconds between the tries of a request, without end."""

    def __iter__(self) -> Iterator[float]:
        return (back_off(failures, *BACK_OFF) for failures in itertools.count(1))


class _NoDiffBase(kopf.DiffBaseStorage):
    """Handlers of events need no differences; computing them takes half of kopf's time."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None
