"""Metrics and probes of the operator itself; `runs.py` has the metrics of runs. No label has more values than there are
reasons or kinds."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import prometheus_client as prometheus
from aiohttp import web

from atoll_operator.kube.access import PathAccess
from atoll_operator.plan.unit.failure import REASONS

STAGES = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
HEAL_BUCKETS = (1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600)
PLAN_BUCKETS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
MOST_REASONS = 64
T = TypeVar("T")


class Metrics:
    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        counter = partial(prometheus.Counter, registry=self.registry)
        gauge = partial(prometheus.Gauge, registry=self.registry)
        histogram = partial(prometheus.Histogram, registry=self.registry)
        text = "From a unit's failure to the first merge of its next incarnation."
        self.heal_seconds = histogram("atoll_heal_seconds", text, buckets=HEAL_BUCKETS)
        text = "Each stage of a heal: schedule, pull, start, restore, compile, catch_up."
        self.heal_stage_seconds = histogram("atoll_heal_stage_seconds", text, ["stage"], buckets=STAGES)
        text = "Restarts of units, in place or on new hosts."
        self._restarts = counter("atoll_unit_restarts", text, ["reason"])
        self._reasons = set(REASONS)
        self.reconcile_seconds = histogram("atoll_reconcile_seconds", "One pass over one object.", ["kind"])
        text = "CPU of a pass itself: to observe, to plan, to act, to write the status."
        self.plan_seconds = histogram("atoll_plan_seconds", text, ["kind"], buckets=PLAN_BUCKETS)
        text = "Passes that ended with an error."
        self.reconcile_errors = counter("atoll_reconcile_errors", text, ["kind", "error"])
        self.queue_depth = gauge("atoll_queue_depth", "Keys that wait for a worker.")
        self.queue_age = gauge("atoll_queue_oldest_seconds", "Age of the oldest key, waiting or at work.")
        text = "Answers of the API server other than success."
        self.api_errors = counter("atoll_api_errors", text, ["code"])
        text = "Polls of a syncer's or an evaluator's status that failed."
        self.poll_errors = counter("atoll_poll_errors", text, ["reason"])
        self.leader = gauge("atoll_leader", "1 in the operator that acts, 0 in others.")

    def restarted(self, reason: str) -> None:
        """Counts a restart. Of reasons that images choose, those after the first `MOST_REASONS` are one: Other."""
        if len(self._reasons) < len(REASONS) + MOST_REASONS:
            self._reasons.add(reason)
        self._restarts.labels(reason if reason in self._reasons else "Other").inc()


class CpuTimed(Generic[T]):
    """Awaits work and adds up the CPU seconds of its own steps, without those of other tasks meanwhile."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        step = partial(self._work.send, None)
        while True:
            began = time.thread_time()
            try:
                awaited = step()
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                self.seconds += time.thread_time() - began
            try:
                step = partial(self._work.send, (yield awaited))
            except BaseException as error:
                step = partial(self._work.throw, error)


Page = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serving(
    port: int, pages: Mapping[str, Page], tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serves these paths while the context is open. Raises OSError if the port is taken."""
    application = web.Application()
    application.add_routes([web.get(path, page) for path, page in pages.items()])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", port, ssl_context=tls).start()
        yield
    finally:
        await runner.cleanup()


def probe(check: Callable[[], tuple[bool, str]]) -> Page:
    """A page for a check that returns whether all is well, and a text about it."""

    async def page(_: web.Request) -> web.Response:
        well, text = check()
        return web.Response(status=200 if well else 503, text=text)

    return page


def figures(registry: prometheus.CollectorRegistry, access: PathAccess) -> Page:
    """A page with the metrics, for callers that `access` allows."""

    async def page(request: web.Request) -> web.Response:
        if (status := await access.status(request.headers.get("Authorization", ""))) != 200:
            return web.Response(status=status)
        headers = {"Content-Type": prometheus.CONTENT_TYPE_LATEST}
        return web.Response(body=prometheus.generate_latest(registry), headers=headers)

    return page
