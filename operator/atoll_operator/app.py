"""Puts the parts together and runs them until one of them ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from atoll_operator import handlers, health
from atoll_operator.cluster import Cluster
from atoll_operator.credentials import Credentials
from atoll_operator.feed import Feeds
from atoll_operator.metrics import Metrics
from atoll_operator.reconcile_run import RunReconciler
from atoll_operator.reconcile_unit import UnitReconciler
from atoll_operator.settings import Settings
from atoll_operator.store import Key, Store
from atoll_operator.workqueue import WorkQueue

DEFINITIONS_SECONDS = 120.0
"""An operator that starts before its definitions waits this long, and ends then."""
EXIT_SECONDS = 10.0
"""For kopf to end its watches; less than the pod's grace period."""
STUCK_SECONDS = 180.0
"""A key older than this means that the process makes no progress: nine full time-outs of one call."""


class App:
    """One operator."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._store = Store()
        self._cluster = Cluster(credentials, self._metrics)
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile)
        self._queue.on_error = self._failed
        self._feeds = Feeds(settings, self._metrics, self._fed)
        self._runs = RunReconciler(settings, self._cluster, self._store, self._queue, self._feeds)
        self._units = UnitReconciler(
            settings, self._cluster, self._store, self._queue, self._feeds, self._metrics
        )
        self._ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def run(self) -> None:
        """Returns when kopf was asked to stop (SIGTERM, SIGINT).

        Raises:
            Exception: the first that ended a part.
        """
        server = await health.serve(
            self._settings.health_port, self._metrics, self._alive, self._prepared, self._refresh
        )
        try:
            async with self._cluster:
                await self._cluster.wait_until_served(DEFINITIONS_SECONDS)
                self._tasks = [
                    asyncio.create_task(self._queue.run(), name="work"),
                    asyncio.create_task(self._resync(), name="resync"),
                ]
                watching = asyncio.create_task(self._watch(), name="watch")
                await asyncio.wait([watching, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                if not self._stopping:
                    watching.cancel()  # it is done already, or a part of ours died before it
                await self._stop()
                await asyncio.wait([watching], timeout=EXIT_SECONDS)
                for task in (watching, *self._tasks):
                    if task.done() and not task.cancelled():
                        task.result()
        finally:
            await server.cleanup()

    async def _watch(self) -> None:
        await handlers.watch(self._settings, self._store, self._queue.add, self._ready, self._stop)

    async def _stop(self) -> None:
        """Ends all but the watches; nothing that a pass had begun needs to be finished."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._feeds.close(), return_exceptions=True)

    async def _reconcile(self, key: Key) -> None:
        started = time.monotonic()
        reconciler = self._runs if key.kind == "TrainingRun" else self._units
        try:
            await reconciler(key)
        finally:
            self._metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - started)

    async def _resync(self) -> None:
        """Looks at everything again, also at what no watch tells of."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            self._runs.review()
            self._units.review()
            for key in self._store.keys("TrainingRun", "LearnerUnit"):
                self._queue.add(key)

    def _fed(self, run: Key, units: frozenset[str]) -> None:
        self._queue.add(run)
        for name in units:
            self._queue.add(Key("LearnerUnit", run.namespace, name))

    def _failed(self, key: Key, error: Exception) -> None:
        self._metrics.reconcile_errors.labels(key.kind, type(error).__name__).inc()

    def _alive(self) -> str:
        age = self._queue.oldest_seconds()
        return f"a key has waited for {age:.0f} s" if age > STUCK_SECONDS else ""

    def _prepared(self) -> str:
        return "" if self._ready.is_set() else "the watches have not started yet"

    def _refresh(self) -> None:
        self._metrics.queue_depth.set(self._queue.depth)
        self._metrics.queue_age.set(self._queue.oldest_seconds())
        bodies = (self._store.get(key) or {} for key in self._store.keys("TrainingRun"))
        phases = Counter(body.get("status", {}).get("phase", "Pending") for body in bodies)
        self._metrics.runs.clear()
        for phase, count in phases.items():
            self._metrics.runs.labels(phase).set(count)
