"""Polls the evaluator of each run for its results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from atoll_operator.kube.cache import Key
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.logs import tell
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import evaluator_host
from atoll_operator.plan.run.observed import EvaluatorState
from atoll_operator.polling.poller import Poll, Poller, PollFailed, fetch
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus

INTERVALS = 5
"""Of the syncer's polls between two polls of the evaluator: a result comes per checkpoint, not per step."""
MAX_INTERVALS = 20
"""The same while the evaluator does not answer."""


class EvaluatorPoller(Poller[Poll[EvaluatorState]]):
    """Calls `changed` with a run's key when its evaluator reports something new."""

    def __init__(self, settings: Settings, metrics: Metrics, changed: Callable[[Key], None]) -> None:
        super().__init__(settings, metrics)
        self._changed = changed

    def _new(self, run: Key, uid: str, shards: int) -> Poll[EvaluatorState]:
        return Poll(run, uid, shards, EvaluatorState())

    def state(self, run: Key, uid: str) -> EvaluatorState:
        """What is known; empty before the first answer."""
        poll = self._find(run, uid)
        return poll.state if poll is not None else EvaluatorState()

    async def _round(self, poll: Poll[EvaluatorState], session: aiohttp.ClientSession) -> float:
        run, old = poll.run, poll.state
        url = self._settings.evaluator_url.format(run=run.name, namespace=run.namespace)
        try:
            host = evaluator_host(run.name, run.namespace)
            status = await fetch(session, url, host, poll.uid, EvaluatorStatus)
        except PollFailed as error:
            poll.failures += 1
            poll.state = replace(old, reason=error.reason, message=str(error))
            self._metrics.poll_errors.labels(error.reason).inc()
            if old.reason != error.reason:
                tell(logging.WARNING, str(error), object=str(run), url=url, reason=error.reason)
        else:
            poll.state, poll.failures = EvaluatorState(status=status), 0
        if poll.state != old:
            self._changed(run)
        seconds = self._settings.poll_seconds
        return back_off(poll.failures + 1, INTERVALS * seconds, MAX_INTERVALS * seconds)
