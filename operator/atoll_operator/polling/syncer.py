"""Polls shard 0 of each active run's syncer, and asks it for the checkpoint before a suspension."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp

from atoll_operator.kube.cache import Key
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.logs import tell
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import shard_host
from atoll_operator.plan.run.syncer_state import (
    UNAVAILABLE,
    CheckpointOrder,
    StatusDiff,
    SyncerState,
    compare,
    heard,
    missed,
    next_checkpoint_step,
)
from atoll_operator.polling.poller import Poll, Poller, PollFailed, fetch
from atoll_operator.settings import Settings
from atoll_runtime.contract import Order, SyncerStatus, dump

MAX_SECONDS = 15.0
"""Between two polls of a syncer that does not answer, or that has many units."""
UNITS_PER_SECOND = 100.0
"""Unit reports read per second and run, so that polling costs the same for runs of any size."""
MISPLACED = "SyncerShardMismatch"


@dataclass(slots=True)
class SyncerPoll(Poll[SyncerState]):
    """Polling of one run's syncer."""

    saving: bool = False
    """A checkpoint that holds everything is to be saved."""
    wanted: int | None = None
    """Global step of which, or of a later one, a user wants a checkpoint."""
    order: CheckpointOrder | None = None


class SyncerPoller(Poller[SyncerPoll]):
    """Calls `changed` with a run's key and what has changed in its syncer's report, but for figures."""

    def __init__(
        self, settings: Settings, metrics: Metrics, changed: Callable[[Key, StatusDiff], None]
    ) -> None:
        super().__init__(settings, metrics)
        self._changed = changed

    def _new(self, run: Key, uid: str, shards: int) -> SyncerPoll:
        return SyncerPoll(run, uid, shards, SyncerState())

    def state(self, run: Key, uid: str) -> SyncerState:
        """What is known; empty before the first poll."""
        poll = self._find(run, uid)
        if poll is None:
            return SyncerState()
        return poll.state if poll.task is not None else replace(poll.state, answering_since=None)

    def save(self, run: Key, wanted: bool) -> None:
        """From the next poll on, ask shard 0 to save a checkpoint that holds everything; or no longer do so."""
        if (poll := self._polls.get(run)) and poll.saving != wanted:
            poll.saving, poll.order = wanted, None
            poll.poked.set()

    def request(self, run: Key, step: int | None) -> None:
        """Ask for a checkpoint of this global step or a later one, from the next poll on; None: no longer do so."""
        if (poll := self._polls.get(run)) and poll.wanted != step:
            poll.wanted = step
            poll.poked.set()

    def order(self, run: Key, uid: str) -> CheckpointOrder | None:
        """The checkpoint that shard 0 was asked for."""
        poll = self._find(run, uid)
        return poll.order if poll is not None else None

    async def _round(self, poll: SyncerPoll, session: aiohttp.ClientSession) -> float:
        old, order = poll.state, poll.order
        new = await self._poll(poll, session)
        if new.answers and new.status is not None:
            if poll.saving:
                await self._order(poll, session, new.status)
            elif poll.wanted is not None:
                await self._ask(poll, session, poll.wanted)
        poll.state = new
        poll.failures = 0 if new.answers else poll.failures + 1
        diff = compare(old, new)
        if poll.order != order:
            diff = replace(diff, run=True)
        if diff:
            self._changed(poll.run, diff)
        return self._seconds(poll, len(new.status.units) if new.status is not None else 0)

    def _seconds(self, poll: SyncerPoll, units: int) -> float:
        """Until the next poll: longer without an answer, and longer for large runs unless something is under way."""
        seconds = self._settings.poll_seconds
        if poll.failures:
            return back_off(poll.failures + 1, seconds, max(MAX_SECONDS, seconds))
        if poll.saving or poll.state.misses:
            return seconds
        return max(seconds, min(units / UNITS_PER_SECOND, MAX_SECONDS))

    async def _poll(self, poll: SyncerPoll, session: aiohttp.ClientSession) -> SyncerState:
        old, (url, host) = poll.state, self._address(poll.run)
        try:
            status = await fetch(session, url, host, poll.uid, SyncerStatus)
            if (status.shard, status.shards) != (0, poll.shards):
                answer = f"shard {status.shard} of {status.shards} answers, not 0 of {poll.shards}"
                raise PollFailed(MISPLACED, answer)
        except PollFailed as error:
            self._metrics.poll_errors.labels(error.reason).inc()
            new = missed(old, error.reason, str(error))
            if old.reason != new.reason:
                starting = old.status is None and new.reason == UNAVAILABLE  # its pod may not run yet
                level = logging.INFO if starting else logging.WARNING
                tell(level, str(error), object=str(poll.run), url=url, reason=error.reason)
            return new
        return heard(old, status, time.time(), time.monotonic())

    async def _order(self, poll: SyncerPoll, session: aiohttp.ClientSession, report: SyncerStatus) -> None:
        """Ask for a checkpoint that holds everything, until it stands: shard 0 may be killed, or give it up. It begins
        none while one of this step or a later one is under way.
        """
        step = next_checkpoint_step(report, poll.order)
        if poll.order is None or poll.order.step != step:
            poll.order = CheckpointOrder(step)
        if report.checkpoint.current or poll.order.refused:
            return
        code = await self._ask(poll, session, step)
        if 300 <= code < 500:
            poll.order = CheckpointOrder(step, f"it answers {code} to the order")

    async def _ask(self, poll: SyncerPoll, session: aiohttp.ClientSession, step: int) -> int:
        """Ask shard 0 for a checkpoint of this step or a later one; returns its answer's status code, 503 for none."""
        url, host = self._address(poll.run)
        try:
            async with session.post(url, server_hostname=host, data=dump(Order(cut=step))) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = "the syncer cannot be asked for a checkpoint"
            tell(logging.WARNING, problem, object=str(poll.run), url=url, error=str(error))
            return 503

    def _address(self, run: Key) -> tuple[str, str]:
        """The URL of shard 0's report, and the host name in its certificate."""
        url = self._settings.syncer_url.format(run=run.name, namespace=run.namespace, shard=0)
        return url, shard_host(run.name, run.namespace, 0)
