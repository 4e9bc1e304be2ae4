"""Puts the parts together and runs them until a signal, or until one of them fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import uuid
from contextlib import nullcontext

import aiohttp

from atoll_operator.api.group import LABEL_MANAGER, MANAGER
from atoll_operator.certificates.authority import self_signed
from atoll_operator.cluster import Cluster
from atoll_operator.kube.access import PathAccess
from atoll_operator.kube.events import Feed, Watch
from atoll_operator.kube.lease import Leadership, lease_name
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import until_first, wait_for_api
from atoll_operator.kube.watches import watch
from atoll_operator.metrics.process import Metrics, figures, probe, serving
from atoll_operator.metrics.runs import RunCollector
from atoll_operator.reconcilers.controller import Controller
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.run import RunReconciler
from atoll_operator.reconcilers.unit import UnitReconciler
from atoll_operator.reconcilers.wakeups import Dispatcher
from atoll_operator.settings import Settings

COLLECT_SECONDS = 60.0
"""Seconds between two full garbage collections. One takes 0.2 s with 10,000 pods."""
LEASE_TRIES = 4
"""Tries of a renewal that fit into the lease's duration even if each of them times out."""
OWNED = ("StatefulSet", "Service", "ConfigMap", "Secret", "PodDisruptionBudget")
OURS = f"{LABEL_MANAGER}={MANAGER}"
WATCHES = (
    Watch("TrainingRun"),
    Watch("LearnerUnit"),  # without our label, because a unit may be made by hand
    Watch("Pod", OURS),
    *(Watch(kind, OURS, metadata=True) for kind in OWNED),
)
RECONCILERS = {"TrainingRun": RunReconciler, "LearnerUnit": UnitReconciler}


class App:
    """One operator. It fills its inventory from the start. Everything else waits until this operator leads."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._inventory = Inventory()
        self._dispatcher = Dispatcher(self._inventory)
        # For the Lease, and for the reviews of who may read the metrics, at most eight at a time.
        time_out = aiohttp.ClientTimeout(total=settings.lease_seconds / LEASE_TRIES)
        self._quick_cluster = Cluster(credentials, self._metrics, time_out=time_out)
        self._leadership = Leadership(
            self._quick_cluster,
            namespace=settings.lease_namespace,
            name=lease_name("atoll-operator", settings.namespaces),
            identity=settings.identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
            seconds=settings.lease_seconds,
            labels={LABEL_MANAGER: MANAGER},
        )
        self._cluster = Cluster(credentials, self._metrics, may_write=self._leadership.leads)
        self._feed: Feed | None = None
        self._metrics.registry.register(RunCollector(self._inventory, self._leads))
        self._metrics.leader.set_function(self._leads)
        self._metrics.queue_age.set_function(self._oldest)
        self._metrics.queue_depth.set_function(
            lambda: queue.depth if (queue := self._dispatcher.queue) else 0
        )

    async def run(self) -> None:
        """Returns after SIGTERM or SIGINT; raises the first exception that ended a part."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        probes = {"/healthz": probe(self._alive), "/readyz": probe(self._ready)}
        pages = {"/metrics": figures(self._metrics.registry, PathAccess(self._quick_cluster, "/metrics"))}
        port = self._settings.metrics_port
        metrics = serving(port, pages, self_signed("atoll-operator")) if port else nullcontext()
        health = serving(self._settings.health_port, probes)
        async with self._cluster, self._quick_cluster, health, metrics:
            await until_first(self._operate(), stopped.wait(), _collect())

    async def _operate(self) -> None:
        await wait_for_api(self._cluster.check_served)
        watches = list(WATCHES)
        if await wait_for_api(lambda: self._cluster.may_list("Node")):
            watches.append(Watch("Node", cluster_scoped=True))
        else:
            problem = "may not watch nodes: the pods of a lost node are replaced when they are deleted"
            log(logging.WARNING, problem)
        told = self._dispatcher.changed, self._dispatcher.listed
        feed = self._feed = Feed(self._cluster, watches, self._settings.namespaces, self._inventory, *told)
        await until_first(watch(feed, self._settings.resync_seconds), self._lead(feed))

    async def _lead(self, feed: Feed) -> None:
        await feed.filled.wait()
        gc.freeze()  # the listed objects live long, like those of the modules
        await self._leadership.hold(lambda: self._work(feed))

    async def _work(self, feed: Feed) -> None:
        own = self._settings, self._cluster, self._inventory, self._metrics
        controller = Controller(*own, RECONCILERS, feed.knows)
        self._dispatcher.queue = controller.queue
        try:
            await controller.run()
        finally:
            self._dispatcher.queue = None

    def _leads(self) -> bool:
        return self._dispatcher.queue is not None

    def _oldest(self) -> float:
        queue = self._dispatcher.queue
        return 0.0 if queue is None else queue.oldest_seconds()

    def _alive(self) -> tuple[bool, str]:
        age = self._oldest()
        stuck = age > self._settings.stuck_seconds and not self._cluster.under_way
        return not stuck, f"a key has waited for {age:.0f} s, and for no answer" if stuck else "ok"

    def _ready(self) -> tuple[bool, str]:
        feed = self._feed
        if feed is None or not (feed.serves or feed.refusal):
            return False, "the watches have not started yet"
        if feed.refusal:
            return feed.serves, f"may not watch {feed.refusal}"
        return True, "ok, leads" if self._leads() else "ok, stands by"


async def _collect() -> None:
    """Runs full collections between passes. Python collects the young generations by itself."""
    while True:
        await asyncio.sleep(COLLECT_SECONDS)
        gc.collect()
