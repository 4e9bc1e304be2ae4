"""Supervises the watches of one cluster: starts kopf again whenever it ends, and finds what was deleted meanwhile.

kopf ends after a stream ERROR other than 410, and does not report an object that was deleted while it was not watching.
Therefore each of its lists is compared with what is known, and so is a list of metadata at each resync.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Sequence

from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import ApiError, Unreachable
from atoll_operator.kube.events import KopfThread, Sink
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.logs import tell
from atoll_operator.kube.session import BACK_OFF, Names, Scope, Watch

STEADY_SECONDS = 30.0
"""After a run of this length kopf is started again without a growing back-off."""
SILENT_SECONDS = 30.0
"""kopf is started again when its loop gives no sign of life, or it does not try to list a kind, for this long."""


class ClusterWatches:
    """Reports the events of one cluster.

    Args:
        client: kopf uses its credentials too.
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
        self._client, self._namespaces, self._sink = client, namespaces, sink
        self._scopes = {
            path: Scope(watch, namespace, path)
            for watch in watches
            for namespace in ([""] if watch.cluster_scoped else namespaces or [""])
            for path in [client.resources[watch.kind].path(namespace)]
        }
        self._resync_seconds = resync_seconds
        self._listed: set[str] = set()
        self._problems: dict[str, tuple[str, str]] = {}
        """By path: status code and message."""

    @property
    def refusal(self) -> str:
        """The watches that the API server refuses, in its words; empty where it refuses none."""
        problems = self._problems.items()
        return "; ".join(f"{path}: {text}" for path, (code, text) in problems if code in ("401", "403"))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name="watches")
            group.create_task(self._resync(), name="resync of watches")

    async def _watch(self) -> None:
        failures = 0
        while True:
            kopf = KopfThread(
                self._client, self._scopes, self._namespaces, self._sink, self._take_list, self._outcome
            )
            started = time.monotonic()
            try:
                reason = await self._end_of(kopf)
            finally:
                kopf.stop()
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            wait = back_off(failures, *BACK_OFF)
            problem = "the watches ended; starts them again"
            tell(logging.WARNING, problem, error=reason, seconds=round(wait, 2))
            await asyncio.sleep(wait)

    async def _end_of(self, kopf: KopfThread) -> str:
        """Waits until kopf has ended, or needs to be started again; returns the reason."""
        while not (await asyncio.wait([kopf.ended], timeout=1.0))[0]:
            now = time.monotonic()
            if now - kopf.alive > SILENT_SECONDS:
                return f"no sign of life for {SILENT_SECONDS:g} s"
            missing = self._scopes.keys() - kopf.listed
            if missing and now - kopf.http.asked > SILENT_SECONDS:  # not served yet when kopf started
                return f"does not watch {', '.join(sorted(missing))}"
            kopf.ping()
        return kopf.ended.result()

    def _take_list(self, scope: Scope, names: Names, version: int) -> None:
        self._sink.listed(scope.watch.kind, scope.namespace, names, version)
        self._listed.add(scope.path)
        if len(self._listed) == len(self._scopes):
            self.filled.set()

    def _outcome(self, path: str, code: str, text: str) -> None:
        """Logs each problem of a path once."""
        if not code:
            self._problems.pop(path, None)
        elif self._problems.get(path) != (code, text):
            self._problems[path] = code, text
            tell(logging.WARNING, "a watch is down and will be tried again", path=path, error=text)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._resync_seconds * random.uniform(0.9, 1.1))
            for path, scope in self._scopes.items():
                watch = scope.watch
                try:
                    bodies, version = await self._client.list(
                        watch.kind, scope.namespace, watch.selector, metadata=True
                    )
                except (ApiError, Unreachable) as error:
                    self._outcome(path, str(getattr(error, "status", "unreachable")), str(error))
                    continue
                metas = (body["metadata"] for body in bodies)
                names = {(meta.get("namespace", ""), meta["name"]) for meta in metas}
                self._outcome(path, "", "")
                self._sink.listed(watch.kind, scope.namespace, names, version)
