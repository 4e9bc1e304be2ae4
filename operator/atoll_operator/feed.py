"""Asks each active run's syncer for its status, and tells the queue when something changed."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp
from pydantic import ValidationError

from atoll_operator.logs import tell
from atoll_operator.metrics import Metrics
from atoll_operator.plan.names import syncer_host
from atoll_operator.plan.runobjects import FeedState
from atoll_operator.settings import Settings
from atoll_operator.store import Key
from atoll_runtime.contract import SyncerStatus

TIME_OUT = aiohttp.ClientTimeout(total=5, connect=3)
MAX_WAIT_SECONDS = 15.0
BODY_LIMIT = 4 * 2**20
"""Bytes of a status; a thousand units take about 400 KiB."""
UNAVAILABLE = "SyncerUnavailable"
CERTIFICATE = "SyncerCertificateInvalid"
FOREIGN = "SyncerOfAnotherRun"
MALFORMED = "SyncerStatusInvalid"


@dataclass(slots=True)
class _Feed:
    task: asyncio.Task[None]
    uid: str
    soon: asyncio.Event
    state: FeedState


class Feeds:
    """One task for each run that trains. `changed` gets the run's key and the names of units with news."""

    def __init__(
        self, settings: Settings, metrics: Metrics, changed: Callable[[Key, frozenset[str]], None]
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._changed = changed
        self._feeds: dict[Key, _Feed] = {}

    def state(self, run: Key, uid: str) -> FeedState:
        """What is known; empty before the first poll."""
        feed = self._feeds.get(run)
        return feed.state if feed is not None and feed.uid == uid else FeedState()

    def ensure(self, run: Key, uid: str, context: ssl.SSLContext) -> None:
        """Starts to ask, unless that is done already."""
        feed = self._feeds.get(run)
        if feed is not None and feed.uid == uid and not feed.task.done():
            return
        self.stop(run)
        soon = asyncio.Event()
        task = asyncio.create_task(
            self._follow(run, uid, context, soon), name=f"feed {run.namespace}/{run.name}"
        )
        self._feeds[run] = _Feed(task, uid, soon, FeedState())

    def stop(self, run: Key) -> None:
        """Forgets the run, if it is known."""
        feed = self._feeds.pop(run, None)
        if feed is not None:
            feed.task.cancel()

    def poke(self, run: Key) -> None:
        """Asks now rather than at the next interval."""
        if feed := self._feeds.get(run):
            feed.soon.set()

    async def close(self) -> None:
        tasks = [feed.task for feed in self._feeds.values()]
        for run in list(self._feeds):
            self.stop(run)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, run: Key, uid: str, context: ssl.SSLContext, soon: asyncio.Event) -> None:
        """Until cancelled: every interval, less often while there is no answer."""
        url = self._settings.feed_url.format(run=run.name, namespace=run.namespace)
        host = syncer_host(run.name, run.namespace)
        failures = 0
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        async with aiohttp.ClientSession(connector=connector, timeout=TIME_OUT) as session:
            while True:
                old = self._feeds[run].state
                new = await self._poll(session, url, host, uid, old)
                failures = 0 if new.answers else failures + 1
                self._feeds[run].state = new
                units = _news(old, new)
                if old != new:
                    self._changed(run, units)
                wait = min(self._settings.feed_seconds * 2.0 ** min(failures, 8), MAX_WAIT_SECONDS)
                if not failures:
                    wait = self._settings.feed_seconds
                try:
                    await asyncio.wait_for(soon.wait(), wait * random.uniform(0.9, 1.1))
                except TimeoutError:
                    continue
                soon.clear()

    async def _poll(
        self, session: aiohttp.ClientSession, url: str, host: str, uid: str, old: FeedState
    ) -> FeedState:
        try:
            async with session.get(url, server_hostname=host) as response:
                text = await response.content.read(BODY_LIMIT)
                if response.status != 200:
                    return self._lost(old, url, UNAVAILABLE, f"the syncer answers {response.status}")
            status = SyncerStatus.model_validate_json(text)
        except (
            aiohttp.ClientConnectorCertificateError,
            aiohttp.ClientConnectorSSLError,
            ssl.SSLError,
        ) as error:
            return self._lost(old, url, CERTIFICATE, f"the syncer's certificate is not this run's: {error}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return self._lost(
                old, url, UNAVAILABLE, f"the syncer does not answer: {type(error).__name__}: {error}"
            )
        except ValidationError as error:
            return self._lost(
                old, url, MALFORMED, f"the syncer's status cannot be read: {error.errors()[:3]}"
            )
        if status.run_uid != uid:
            return self._lost(
                old, url, FOREIGN, f"the syncer serves the run of uid {status.run_uid}, not {uid}"
            )
        return FeedState(status=status, answering_since=old.answering_since or time.time())

    def _lost(self, old: FeedState, url: str, reason: str, message: str) -> FeedState:
        self._metrics.feed_errors.labels(reason).inc()
        if old.reason != reason:
            tell(logging.WARNING, message, url=url, reason=reason)
        return replace(old, reason=reason, message=message, answering_since=None)


def _news(old: FeedState, new: FeedState) -> frozenset[str]:
    """Units whose report changed; all of them when the syncer comes or goes."""
    before = old.status.units if old.status is not None else {}
    after = new.status.units if new.status is not None else {}
    if old.answers != new.answers:
        return frozenset({*before, *after})
    return frozenset(name for name in {*before, *after} if before.get(name) != after.get(name))
