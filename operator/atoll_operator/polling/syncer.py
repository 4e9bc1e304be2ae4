"""Asks the shards of each active run's syncer for their status, and tells the queue when something changed."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import aiohttp

from atoll_operator.kube.keys import Key
from atoll_operator.kube.logs import tell
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import shard_host
from atoll_operator.plan.run.feednews import FeedNews, compare
from atoll_operator.plan.run.shards import (
    UNAVAILABLE,
    CutOrder,
    FeedState,
    combine,
    cut_step,
    follows,
    heard,
    missed,
)
from atoll_operator.polling.reports import TIME_OUT, Unanswered, fetch
from atoll_operator.settings import Settings
from atoll_runtime.contract import Order, SyncerStatus, dump

MAX_WAIT_SECONDS = 15.0
UNITS_PER_SECOND = 100.0
"""Of which a run's syncer is asked, so that a run costs the same however large it is."""
MISPLACED = "SyncerShardMismatch"


@dataclass(slots=True)
class _Feed:
    task: asyncio.Task[None]
    uid: str
    shards: int
    soon: asyncio.Event
    state: FeedState
    stopped: bool = False
    saving: bool = False
    """Whether the shards are to save all that they have."""
    cut: CutOrder | None = None
    asked: dict[int, int] = field(default_factory=dict)
    """Shards that have taken the order, and how often each had been started anew by then."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one shard serves its status, and the name that its certificate has to have."""

    run: Key
    url: str
    host: str
    shard: int
    shards: int
    uid: str


class Feeds:
    """One task for each run that trains. `changed` gets the run's key and what is new."""

    def __init__(
        self, settings: Settings, metrics: Metrics, changed: Callable[[Key, FeedNews], None]
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._changed = changed
        self._feeds: dict[Key, _Feed] = {}

    def state(self, run: Key, uid: str) -> FeedState:
        """What is known; empty before the first poll."""
        feed = self._feeds.get(run)
        return feed.state if feed is not None and feed.uid == uid else FeedState()

    def ensure(self, run: Key, uid: str, shards: int, context: ssl.SSLContext) -> None:
        """Starts to ask, unless that is done already."""
        feed = self._feeds.get(run)
        asked = feed is not None and not feed.stopped and not feed.task.done()
        if feed is not None and asked and (feed.uid, feed.shards) == (uid, shards):
            return
        self.forget(run)
        soon = asyncio.Event()
        task = asyncio.create_task(
            self._follow(run, uid, shards, context, soon), name=f"feed {run.namespace}/{run.name}"
        )
        self._feeds[run] = _Feed(task, uid, shards, soon, FeedState())

    def stop(self, run: Key) -> None:
        """Asks no more. What was said last stays known: the last figures of a run's units are in it."""
        feed = self._feeds.get(run)
        if feed is not None and not feed.stopped:
            feed.task.cancel()
            feed.stopped = True
            feed.state = replace(feed.state, answering_since=None, down="")

    def forget(self, run: Key) -> None:
        """As if the run had never been asked for."""
        self.stop(run)
        self._feeds.pop(run, None)

    def save(self, run: Key, wanted: bool) -> None:
        """Has the shards save a cut of all that they have, from the next poll on, or no more."""
        if (feed := self._feeds.get(run)) and feed.saving != wanted:
            feed.saving, feed.cut, feed.asked = wanted, None, {}
            feed.soon.set()

    def cut(self, run: Key, uid: str) -> CutOrder | None:
        """What the shards were asked to save."""
        feed = self._feeds.get(run)
        return feed.cut if feed is not None and feed.uid == uid else None

    def poke(self, run: Key) -> None:
        """Asks now rather than at the next interval."""
        if feed := self._feeds.get(run):
            feed.soon.set()

    async def close(self) -> None:
        tasks = [feed.task for feed in self._feeds.values()]
        for run in list(self._feeds):
            self.forget(run)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self, run: Key, uid: str, shards: int, context: ssl.SSLContext, soon: asyncio.Event
    ) -> None:
        """Until cancelled: all shards at once, every interval; less often without an answer, or with many units."""
        url = self._settings.feed_url
        places = [
            _Place(
                run=run,
                url=url.format(run=run.name, namespace=run.namespace, shard=shard),
                host=shard_host(run.name, run.namespace, shard),
                shard=shard,
                shards=shards,
                uid=uid,
            )
            for shard in range(shards)
        ]
        states = [FeedState()] * shards
        failures = 0
        connector = aiohttp.TCPConnector(ssl=context, limit=shards)
        async with aiohttp.ClientSession(connector=connector, timeout=TIME_OUT) as session:
            while True:
                old = self._feeds[run].state
                polls = (
                    self._poll(session, place, state) for place, state in zip(places, states, strict=True)
                )
                states = await asyncio.gather(*polls)
                new = await asyncio.to_thread(combine, states) if shards > 1 else combine(states)
                ordered = self._feeds[run].cut
                if self._feeds[run].saving:
                    await self._order(session, places, states, self._feeds[run])
                failures = 0 if new.answers else failures + 1
                self._feeds[run].state = new
                news = compare(old, new)
                if ordered != self._feeds[run].cut:
                    news = replace(news, run=True)
                if news:
                    self._changed(run, news)
                wait = self._settings.feed_seconds
                if failures:
                    wait = min(wait * 2.0 ** min(failures, 8), MAX_WAIT_SECONDS)
                elif not self._feeds[run].saving and not any(state.misses for state in states):
                    wait = max(wait, min(news.of * shards / UNITS_PER_SECOND, MAX_WAIT_SECONDS))
                try:
                    await asyncio.wait_for(soon.wait(), wait * random.uniform(0.9, 1.1))
                except TimeoutError:
                    continue
                soon.clear()

    async def _order(
        self, session: aiohttp.ClientSession, places: list[_Place], states: list[FeedState], feed: _Feed
    ) -> None:
        """Asks each shard for the same cut: once in each of its lives, for it may have been killed while it saved.
        Again for a later one when something was merged meanwhile."""
        step = cut_step(states, feed.cut)
        if step is None:
            return
        if feed.cut is None or feed.cut.step != step:
            feed.cut, feed.asked = CutOrder(step), {}
        for place, state in zip(places, states, strict=True):
            life = state.status.restarts if state.status is not None else 0
            if feed.asked.get(place.shard) == life or feed.cut.refused:
                continue
            if place.shard > 0 and not follows(states[0], step):
                continue
            try:
                async with session.post(
                    place.url, server_hostname=place.host, data=dump(Order(cut=step))
                ) as response:
                    if response.status < 300:
                        feed.asked[place.shard] = life
                    elif response.status < 500:
                        feed.cut = CutOrder(step, f"it answers {response.status} to the order")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                tell(logging.WARNING, "a shard could not be asked for a cut", url=place.url, error=str(error))

    async def _poll(self, session: aiohttp.ClientSession, place: _Place, old: FeedState) -> FeedState:
        try:
            status = await fetch(session, place.url, place.host, place.uid, SyncerStatus, "syncer")
        except Unanswered as error:
            return self._lost(old, place, error.reason, str(error))
        if (status.shard, status.shards) != (place.shard, place.shards):
            answer = f"shard {status.shard} of {status.shards} answers, not {place.shard} of {place.shards}"
            return self._lost(old, place, MISPLACED, answer)
        return heard(old, status, time.time(), time.monotonic())

    def _lost(self, old: FeedState, place: _Place, reason: str, message: str) -> FeedState:
        self._metrics.feed_errors.labels(reason).inc()
        new = missed(old, reason, message)
        if old.reason != new.reason:
            awaited = old.status is None and reason == UNAVAILABLE  # its pod may be starting
            level = logging.INFO if awaited else logging.WARNING
            tell(level, message, object=str(place.run), url=place.url, reason=reason)
        return new
