"""Runs kopf in a thread with an event loop of its own. This is the only file that imports kopf."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import kopf

from atoll_operator.kube.feed import Feed
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.session import BACK_OFF, KopfSession

WATCH_SECONDS = 40
"""A watch is opened again after this long, where its last event was."""


class KopfThread:
    """One kopf operator, from its start to its end."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.session = KopfSession(feed)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Its result is why kopf ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        # A daemon, so that a hanging loop does not keep the process alive.
        threading.Thread(target=self._run, name="kopf", daemon=True).start()

    def stop(self) -> None:
        """Ends kopf without waiting for it. What it still reports is as true as anything else."""
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
        self._loop.set_exception_handler(lambda loop, context: None)  # of kopf's callbacks that were cut off
        stopping = asyncio.create_task(self._stopping.wait())
        async with self.session.open() as session:
            work = kopf.operator(
                registry=self._registry(session),
                identity="operator",  # type: ignore[arg-type] # else kopf asks the system for the user's name
                standalone=True,
                clusterwide=not self._feed.namespaces,
                namespaces=self._feed.namespaces,
            )
            operator = asyncio.create_task(work)
            await asyncio.wait([operator, stopping], return_when=asyncio.FIRST_COMPLETED)
            # After one watch failed, kopf's other watches wait for a new login, also when cancelled only once.
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
            settings.peering.standalone = True
            settings.persistence.diffbase_storage = _NoDiffBase()
            # Else kopf kills the process ten minutes after its end.
            settings.process.ultimate_exiting_timeout = None
            settings.networking.request_timeout = 20
            settings.networking.connect_timeout = 5
            settings.networking.error_backoffs = _BackOffs()
            settings.watching.server_timeout = WATCH_SECONDS
            for kind, selector in kinds.items():
                if selector:
                    settings.watching.label_selectors[*resources[kind]] = selector

        @kopf.on.cleanup(registry=registry)
        async def end(**_: Any) -> None:
            self._stopping.set()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.AiohttpSession:
            return kopf.AiohttpSession(server=feed.client.credentials.server, aiohttp_session=session)

        async def handle(event: Any, resource: kopf.Resource, **_: Any) -> None:
            feed.post(feed.event, resource.kind, event["type"] == "DELETED", event["object"])

        for kind in kinds:
            kopf.on.event(*resources[kind], registry=registry)(handle)
        return registry


# The feed tells of failed requests, and the supervisor of an end.
logging.getLogger("kopf").setLevel(logging.CRITICAL)


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
