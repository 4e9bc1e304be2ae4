"""Puts the parts together and runs them until one of them ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Coroutine
from contextlib import AsyncExitStack

import aiohttp

from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.controller import Controller
from atoll_operator.kube import events as handlers
from atoll_operator.kube.cache import Change
from atoll_operator.kube.client import wait_for_api
from atoll_operator.kube.lease import Leadership, lease_name
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.logs import tell
from atoll_operator.metrics import health
from atoll_operator.metrics.process import Metrics
from atoll_operator.metrics.runs import RunCollector
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.watches import Watches
from atoll_operator.settings import Settings

EXIT_SECONDS = 10.0
"""For kopf to end its tasks; less than the pod's grace period."""
LEASE_TRIES = 4
"""Tries of a renewal that fit into a lease, were each to time out."""


class App:
    """One operator. The watches fill the store from the start; all else waits until this operator leads."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._metrics = Metrics()
        self._inventory = Inventory()
        self._cluster = Cluster(credentials, self._metrics, may_write=self._may_write)
        try_seconds = settings.lease_seconds / LEASE_TRIES
        self._lease_cluster = Cluster(
            credentials,
            self._metrics,
            time_out=aiohttp.ClientTimeout(total=try_seconds),
            longest_wait=try_seconds,
        )
        self._leadership = Leadership(
            self._lease_cluster,
            self._metrics.leader.set,
            namespace=settings.lease_namespace,
            name=lease_name("atoll-operator", settings.namespaces),
            identity=settings.identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
            seconds=settings.lease_seconds,
            labels=LABELS,
        )
        self._controller: Controller | None = None
        self._metrics.registry.register(
            RunCollector(self._inventory, leads=lambda: self._controller is not None)
        )
        self._watches: Watches | None = None
        self._ready = asyncio.Event()
        self._leading: asyncio.Task[None] | None = None
        self._stopping = False

    async def run(self) -> None:
        """Returns when kopf was asked to stop (SIGTERM, SIGINT).

        Raises:
            Exception: the first that ended a part.
        """
        server = await health.serve(
            self._settings.health_port,
            self._metrics,
            alive=self._alive,
            ready=self._prepared,
            role=lambda: "stands by" if self._controller is None else "leads",
            refresh=self._refresh,
        )
        try:
            async with AsyncExitStack() as stack:
                for cluster in (self._cluster, self._lease_cluster):
                    await stack.enter_async_context(cluster)
                await wait_for_api(self._cluster.check_served)
                leading = self._leading = asyncio.create_task(self._lead(), name="lead")
                watching = asyncio.create_task(self._watch(), name="watch")
                await asyncio.wait([watching, leading], return_when=asyncio.FIRST_COMPLETED)
                if not self._stopping:
                    watching.cancel()  # it is done already, or a part of ours died before it
                await self._stop()
                await asyncio.wait([watching], timeout=EXIT_SECONDS)
                for task in (watching, leading):
                    if task.done() and not task.cancelled():
                        task.result()
        finally:
            await server.cleanup()

    async def _lead(self) -> None:
        # From then on a signal ends the operator in order, and the lease is given back.
        await self._ready.wait()
        if self._settings.lease_namespace:
            await self._leadership.hold(self._work)
        else:
            self._metrics.leader.set(1)
            await self._work()

    async def _work(self) -> None:
        controller = self._controller = Controller(
            self._settings, self._cluster, self._inventory, self._metrics
        )
        try:
            await controller.run(self._inventory.keys("TrainingRun", "LearnerUnit"))
        finally:
            self._controller = None

    async def _watch(self) -> None:
        """The watches fill the store; only then the work starts, and kopf, which hears the signals."""
        nodes = await wait_for_api(lambda: self._cluster.may_list("Node"))
        if not nodes:
            tell(
                logging.WARNING,
                "may not watch nodes: the pods of a lost node are replaced when they are deleted",
            )
        namespaces = self._settings.namespaces
        watches = self._watches = Watches(
            self._credentials, self._metrics, self._inventory, namespaces, self._changed, nodes
        )
        watching = asyncio.create_task(watches.run(), name="watches")
        try:
            await _unless_ended(watching, watches.filled())
            await _unless_ended(watching, handlers.attend(namespaces, self._ready, self._stop))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _changed(self, change: Change, listed: bool) -> None:
        if self._controller is not None:
            self._controller.changed(change, listed)

    async def _stop(self) -> None:
        """Ends the work, and then the lease; the watches end by themselves."""
        self._stopping = True
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)

    def _may_write(self) -> bool:
        return not self._settings.lease_namespace or self._leadership.leads()

    def _oldest(self) -> float:
        return 0.0 if self._controller is None else self._controller.queue.oldest_seconds()

    def _alive(self) -> str:
        age = self._oldest()
        return f"a key has waited for {age:.0f} s" if age > self._settings.stuck_seconds else ""

    def _prepared(self) -> str:
        refusal = self._watches.refusal if self._watches is not None else ""
        if refusal:
            return f"may not watch {refusal}"
        return "" if self._ready.is_set() else "the watches have not started yet"

    def _refresh(self) -> None:
        self._metrics.queue_depth.set(0 if self._controller is None else self._controller.queue.depth)
        self._metrics.queue_age.set(self._oldest())


async def _unless_ended(task: asyncio.Task[None], work: Coroutine[None, None, None]) -> None:
    """Does the work; an error that ends the task meanwhile ends the work too."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait([task, working], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
