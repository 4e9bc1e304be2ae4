"""Polls shard 0 of each active run's syncer, and asks it for checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import aiohttp

from atoll_operator.kube.cache import Key
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.logs import tell
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import shard_host
from atoll_operator.plan.run.syncer_state import CheckpointOrder, StatusDiff, SyncerState, compare
from atoll_operator.polling.poller import Poll, Poller, PollFailed
from atoll_operator.settings import Settings
from atoll_runtime.contract import Order, SyncerStatus, dump

MAX_SECONDS = 15.0
"""Between two polls of a syncer that does not answer, or that has many units."""
UNITS_PER_SECOND = 100.0
"""Unit reports read per second and run, so that polling costs the same for runs of any size."""
MISPLACED = "SyncerShardMismatch"


class SyncerPoller(Poller[SyncerState, SyncerStatus]):
    """Calls `changed` with a run's key and what has changed in its syncer's report, but for figures."""

    kind = SyncerStatus
    unknown = SyncerState()

    def __init__(
        self, settings: Settings, metrics: Metrics, changed: Callable[[Key, StatusDiff], None]
    ) -> None:
        super().__init__(settings, metrics, settings.syncer_url, partial(shard_host, shard=0))
        self._tell = changed

    def state(self, run: Key, uid: str) -> SyncerState:
        """What is known. A syncer that is not polled any more does not answer."""
        poll, state = self._find(run, uid), super().state(run, uid)
        return replace(state, answering_since=None) if poll is not None and poll.task is None else state

    def order(self, run: Key, wanted: CheckpointOrder | None) -> None:
        """Ask for this checkpoint from the next poll on, until it stands; or no longer do so."""
        if (poll := self._polls.get(run)) and poll.wanted != wanted:
            poll.wanted, poll.state = wanted, replace(poll.state, order=None)
            poll.poked.set()

    async def _heard(
        self, poll: Poll[SyncerState], report: SyncerStatus, session: aiohttp.ClientSession
    ) -> SyncerState:
        if (report.shard, report.shards) != (0, poll.shards):
            answer = f"shard {report.shard} of {report.shards} answers, not 0 of {poll.shards}"
            raise PollFailed(MISPLACED, answer)
        new = poll.state.heard(report, time.time(), time.monotonic())
        wanted = poll.wanted if new.serves else None
        if wanted is not None and not wanted.stands(report):
            wanted = await self._ask(poll.run, wanted, session)
        return replace(new, order=wanted)

    def _changed(self, run: Key, old: SyncerState, new: SyncerState) -> None:
        if diff := compare(old, new):
            self._tell(run, diff)

    def _seconds(self, poll: Poll[SyncerState]) -> float:
        """Longer without an answer, and for large runs unless a checkpoint is wanted."""
        seconds, state = self._settings.poll_seconds, poll.state
        if state.misses:
            return back_off(state.misses, seconds, max(MAX_SECONDS, seconds))
        units = len(state.status.units) if state.status is not None and poll.wanted is None else 0
        return max(seconds, min(units / UNITS_PER_SECOND, MAX_SECONDS))

    async def _ask(
        self, run: Key, wanted: CheckpointOrder, session: aiohttp.ClientSession
    ) -> CheckpointOrder:
        """Ask once more: shard 0 may be killed, or give the checkpoint up. It begins none while one of this step or a
        later one is under way."""
        url, host = self._address(run)
        try:
            async with session.post(url, server_hostname=host, data=dump(Order(cut=wanted.step))) as response:
                refused = 300 <= response.status < 500
                answer = f"it answers {response.status} to the order"
                return replace(wanted, refused=answer if refused else "")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = "the syncer cannot be asked for a checkpoint"
            tell(logging.WARNING, problem, object=str(run), url=url, error=str(error))
            return wanted
