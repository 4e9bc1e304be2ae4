"""Supervises the watches of one cluster: starts kopf again whenever it ends, and lists what kopf does not report.

kopf ends after a stream ERROR other than 410, and does not report an object that was deleted while it was not watching.
Therefore the API client lists a collection after each time kopf listed it, and at each resync.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import ApiError, Unreachable
from atoll_operator.kube.events import KopfThread
from atoll_operator.kube.keys import Object
from atoll_operator.kube.logs import tell
from atoll_operator.kube.middleware import Scope, Watch, back_off

STEADY_SECONDS = 30.0
"""After a run of this length kopf is started again without a growing back-off."""
SILENT_SECONDS = 30.0
"""kopf is started again when its loop gives no sign of life, or it does not try to watch a kind, for this long."""


class Sink(Protocol):
    """Gets all events, in the main loop. It must not change the bodies: kopf still reads them in its thread."""

    def event(self, kind: str, deleted: bool, body: Object) -> None:
        """The object has this state, or was deleted in this state."""

    def listed(self, kind: str, namespace: str, names: Collection[tuple[str, str]], version: int) -> None:
        """A list of a namespace, or of the cluster, had these objects (namespace, name) at this resource version."""


class ClusterWatches:
    """Reports the events of one cluster.

    Args:
        client: for the lists; kopf uses its credentials too.
        namespaces: empty for the whole cluster.
        resync_seconds: between two lists of each collection.
    """

    def __init__(
        self,
        client: ApiClient,
        watches: Sequence[Watch],
        namespaces: Collection[str],
        sink: Sink,
        resync_seconds: float,
    ) -> None:
        self.filled = asyncio.Event()
        """Set when every collection has been listed once."""
        self.client, self.watches, self.namespaces = client, watches, namespaces
        self.scopes = {
            path: Scope(watch, namespace, path)
            for watch in watches
            for namespace in ([""] if watch.cluster_scoped else namespaces or [""])
            for path in [client.resources[watch.kind].path(namespace)]
        }
        """By path."""
        self._sink = sink
        self._resync_seconds = resync_seconds
        self._listed: set[str] = set()
        self._lists: dict[str, asyncio.Task[None]] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        """By path: status code and message."""

    @property
    def refusal(self) -> str:
        """The watches that the API server refuses, in its words; empty where it refuses none."""
        problems = list(self._problems.items())
        return "; ".join(f"{path}: {text}" for path, (code, text) in problems if code in ("401", "403"))

    async def run(self) -> None:
        """Runs until cancelled. The first lists do not wait for kopf; each is repeated when kopf watches."""
        for path in self.scopes:
            self._start_list(path)
        resync = asyncio.create_task(self._resync(), name="resync of watches")
        failures = 0
        try:
            while True:
                kopf = KopfThread(self, asyncio.get_running_loop())
                started = time.monotonic()
                try:
                    reason = await self._ended(kopf)
                finally:
                    kopf.stop()
                failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
                wait = back_off(failures)
                tell(
                    logging.WARNING,
                    "the watches ended; starts them again",
                    error=reason,
                    seconds=round(wait, 2),
                )
                await asyncio.sleep(wait)
        finally:
            for task in (resync, *self._lists.values()):
                task.cancel()

    async def _ended(self, kopf: KopfThread) -> str:
        """Waits until kopf has ended, or needs to be started again; returns the reason."""
        while True:
            done, _ = await asyncio.wait([kopf.ended], timeout=1.0)
            if done:
                return kopf.ended.result()
            now = time.monotonic()
            if now - kopf.alive > SILENT_SECONDS:
                return f"no sign of life for {SILENT_SECONDS:g} s"
            missing = self.scopes.keys() - kopf.open
            if missing and now - kopf.asked > SILENT_SECONDS:  # the kind was not served yet when kopf started
                return f"does not watch {', '.join(sorted(missing))}"
            kopf.ping()

    def received(self, kind: str, deleted: bool, body: Object) -> None:
        """Passes an event on; skips an object that cannot be read, because anybody may create one."""
        try:
            self._sink.event(kind, deleted, body)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            metadata = body.get("metadata", {})
            name = f"{kind} {metadata.get('namespace', '')}/{metadata.get('name', '')}"
            tell(logging.ERROR, f"cannot be read: {type(error).__name__}: {error}", object=name)

    def opened(self, path: str) -> None:
        """kopf has listed this collection and watches it now."""
        self._start_list(path)

    def _start_list(self, path: str) -> None:
        if (known := self._lists.pop(path, None)) is not None:
            known.cancel()
        self._lists[path] = asyncio.create_task(self._list(self.scopes[path]), name=f"list {path}")

    async def _list(self, scope: Scope) -> None:
        """Lists a collection: the first time with contents, later only to find what was deleted."""
        kind, failures, first = scope.watch.kind, 0, scope.path not in self._listed
        while True:
            names: set[tuple[str, str]] = set()
            try:
                metadata = scope.watch.metadata or not first
                pages = self.client.pages(kind, scope.namespace, scope.watch.selector, metadata)
                async for bodies, version in pages:
                    for body in bodies:
                        names.add((body["metadata"].get("namespace", ""), body["metadata"]["name"]))
                        if first:
                            self.received(kind, False, body)
                    listed_at = version
                break
            except (ApiError, Unreachable) as error:  # 410: the list expired between two pages
                failures += 1
                self.problem(scope.path, str(getattr(error, "status", "unreachable")), str(error))
                await asyncio.sleep(back_off(failures))
        self.solved(scope.path)
        self._sink.listed(kind, scope.namespace, names, listed_at)
        self._listed.add(scope.path)
        if len(self._listed) == len(self.scopes):
            self.filled.set()

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._resync_seconds * random.uniform(0.9, 1.1))
            for path in self._listed:
                if path not in self._lists or self._lists[path].done():
                    self._start_list(path)

    def problem(self, path: str, code: str, text: str) -> None:
        """Logs each problem of a path once. Thread-safe."""
        if self._problems.get(path) != (code, text):
            tell(logging.WARNING, "a watch is down and will be tried again", path=path, error=text)
        self._problems[path] = (code, text)

    def solved(self, path: str) -> None:
        """The last request for this path succeeded. Thread-safe."""
        self._problems.pop(path, None)
