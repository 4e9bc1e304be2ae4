"""What an operator does while it leads. It is made anew for each term, because another operator may have acted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Recorder
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.run.syncer_state import StatusDiff
from atoll_operator.polling.evaluator import EvaluatorPoller
from atoll_operator.polling.syncer import SyncerPoller
from atoll_operator.reconcilers.context import ControllerContext
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.run import RunReconciler
from atoll_operator.reconcilers.unit import UnitReconciler
from atoll_operator.reconcilers.wakeups import report_wakeups
from atoll_operator.settings import Settings

RESYNC_SHARES = 0.8, 1.0
"""After these shares of the resync time an object without events is reconciled again."""


class Controller:
    """The work queue, the reconcilers and the pollers."""

    def __init__(self, settings: Settings, cluster: Cluster, inventory: Inventory, metrics: Metrics) -> None:
        self._settings, self._inventory, self._metrics = settings, inventory, metrics
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile)
        self._syncers = SyncerPoller(settings, metrics, self._polled)
        self._evaluators = EvaluatorPoller(settings, metrics, self.queue.add)
        self._recorder = Recorder(cluster, "atoll-operator")
        applier = Applier(cluster, inventory.cache, LABELS, complete=("Service",))
        pollers = self._syncers, self._evaluators
        context = ControllerContext(
            settings, cluster, inventory, self.queue, *pollers, metrics, self._recorder, applier
        )
        self._runs, self._units = RunReconciler(context), UnitReconciler(context)

    async def run(self, known: Iterable[Key]) -> None:
        """Works until cancelled; reconciles the known keys first."""
        for key in known:
            self.queue.add(key)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.run(), name="work")
                group.create_task(self._recorder.run(), name="events")
        finally:
            await self._syncers.close()
            await self._evaluators.close()

    async def _reconcile(self, key: Key) -> None:
        # A resync, at its own time for each key, because a failure waits behind all that is enqueued at once. The
        # reconciler drops it with a deleted object.
        self.queue.add_after(key, self._settings.resync_seconds * random.uniform(*RESYNC_SHARES))
        started = time.monotonic()
        try:
            await (self._runs if key.kind == "TrainingRun" else self._units)(key)
        except Exception as error:
            self._metrics.reconcile_errors.labels(key.kind, type(error).__name__).inc()
            raise
        finally:
            self._metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - started)

    def _polled(self, run: Key, diff: StatusDiff) -> None:
        for key in report_wakeups(run, diff, self._inventory):
            self.queue.add(key)
