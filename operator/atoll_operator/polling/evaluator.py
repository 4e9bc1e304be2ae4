"""Asks the evaluator of each run for its results, and tells the queue when there is something new."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp

from atoll_operator.kube.keys import Key
from atoll_operator.kube.logs import tell
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.evaluator import EvaluatorState
from atoll_operator.plan.pods.names import evaluator_host
from atoll_operator.polling.reports import TIME_OUT, Unanswered, fetch
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus

RARELY = 5
"""Times the interval of the syncer's feed: a result is of a checkpoint, not of a step."""
LONGEST = 2
"""Doublings of it while there is no answer."""


@dataclass(slots=True)
class _Asking:
    task: asyncio.Task[None]
    uid: str
    state: EvaluatorState


class Evaluations:
    """One task for each run that has an evaluator. `changed` gets the run's key."""

    def __init__(self, settings: Settings, metrics: Metrics, changed: Callable[[Key], None]) -> None:
        self._settings, self._metrics, self._changed = settings, metrics, changed
        self._runs: dict[Key, _Asking] = {}

    def state(self, run: Key, uid: str) -> EvaluatorState:
        """What is known; empty before the first answer."""
        asking = self._runs.get(run)
        return asking.state if asking is not None and asking.uid == uid else EvaluatorState()

    def ensure(self, run: Key, uid: str, context: ssl.SSLContext) -> None:
        """Starts to ask, unless that is done already."""
        asking = self._runs.get(run)
        if asking is not None and asking.uid == uid and not asking.task.done():
            return
        self.forget(run)
        task = asyncio.create_task(
            self._follow(run, uid, context), name=f"evaluation {run.namespace}/{run.name}"
        )
        self._runs[run] = _Asking(task, uid, EvaluatorState())

    def forget(self, run: Key) -> None:
        """Asks no more; what was said stands in the run's status."""
        if asking := self._runs.pop(run, None):
            asking.task.cancel()

    async def close(self) -> None:
        tasks = [asking.task for asking in self._runs.values()]
        for run in list(self._runs):
            self.forget(run)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, run: Key, uid: str, context: ssl.SSLContext) -> None:
        """Until cancelled."""
        url = self._settings.evaluator_url.format(run=run.name, namespace=run.namespace)
        host = evaluator_host(run.name, run.namespace)
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        failures = 0
        async with aiohttp.ClientSession(connector=connector, timeout=TIME_OUT) as session:
            while True:
                old = self._runs[run].state
                try:
                    status = await fetch(session, url, host, uid, EvaluatorStatus, "evaluator")
                    new, failures = EvaluatorState(status=status), 0
                except Unanswered as error:
                    new, failures = replace(old, reason=error.reason, message=str(error)), failures + 1
                    self._metrics.feed_errors.labels(error.reason).inc()
                    if old.reason != error.reason:
                        tell(logging.WARNING, str(error), object=str(run), url=url, reason=error.reason)
                if new != old:
                    self._runs[run].state = new
                    self._changed(run)
                wait = RARELY * self._settings.feed_seconds * 2.0 ** min(failures, LONGEST)
                await asyncio.sleep(wait * random.uniform(0.9, 1.1))
