"""Polls the evaluator of each run for its results."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from atoll_operator.kube.cache import Key
from atoll_operator.kube.gather import back_off
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import evaluator_host
from atoll_operator.plan.run.observed import EvaluatorState
from atoll_operator.polling.poller import Poll, Poller
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus

INTERVALS = 5
"""Of the syncer's polls between two polls of the evaluator: a result comes per checkpoint, not per step."""
MAX_INTERVALS = 20
"""The same while the evaluator does not answer."""


class EvaluatorPoller(Poller[EvaluatorState, EvaluatorStatus]):
    """Calls `changed` with a run's key when its evaluator reports something new."""

    kind = EvaluatorStatus
    unknown = EvaluatorState()

    def __init__(self, settings: Settings, metrics: Metrics, changed: Callable[[Key], None]) -> None:
        super().__init__(settings, metrics, settings.evaluator_url, evaluator_host)
        self._tell = changed

    async def _heard(
        self, poll: Poll[EvaluatorState], report: EvaluatorStatus, session: aiohttp.ClientSession
    ) -> EvaluatorState:
        return EvaluatorState(status=report)

    def _changed(self, run: Key, old: EvaluatorState, new: EvaluatorState) -> None:
        if old != new:
            self._tell(run)

    def _seconds(self, poll: Poll[EvaluatorState]) -> float:
        seconds = self._settings.poll_seconds
        return back_off(poll.state.misses + 1, INTERVALS * seconds, MAX_INTERVALS * seconds)
