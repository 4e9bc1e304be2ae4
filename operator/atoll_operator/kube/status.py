"""One status write per pass, none without a change, and writes of figures and counts alone at a bounded rate."""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict

from pydantic import BaseModel

from atoll_operator.api.group import Object
from atoll_operator.kube.client import Cluster
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.keys import Key, parent_key
from atoll_operator.kube.logs import tell
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.plan.conditions import document, only_figures, urgent
from atoll_operator.reconcilers.store import Store

INTERVAL_SECONDS = 2.0
"""Between two writes of one object for the sake of figures."""
WRITES_PER_SECOND = 10.0
"""Of figures, for all objects of a kind together, so that those of a thousand units are 100 s old at most. Each costs
the API server 4 ms of a core (2 cores, 2026-11-23)."""
FIGURES_PASS_SECONDS = 30.0
"""At most between two looks at an object whose figures move: what follows from them must not wait for ever."""
RUN_SECONDS = 1.0
"""Between two passes over a run for the sake of its units: each adds up all of them."""
RUN_UNITS_PER_SECOND = 100.0
"""That a run's passes for the sake of figures alone look at."""


def run_figures_seconds(units: int) -> float:
    """Between two passes over a run of so many units for the sake of figures."""
    return min(max(INTERVAL_SECONDS, units / RUN_UNITS_PER_SECOND), FIGURES_PASS_SECONDS)


class StatusWriter:
    """Writes only over the version that the plan saw."""

    def __init__(self, cluster: Cluster, store: Store, queue: WorkQueue[Key]) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._due: OrderedDict[Key, float] = OrderedDict()
        """Monotonic seconds from which figures alone are written again, in the order of the last writes. What rests is
        forgotten: it takes no part of the writes."""

    async def write(self, key: Key, body: Object, status: BaseModel) -> bool:
        """Whether the status is now as planned, or only a write of figures was put off.

        False when the object changed meanwhile; it is then read afresh and the key comes back.
        """
        new = document(status)
        old = body.get("status", {})
        if new == old:
            return True
        now = time.monotonic()
        wait = self._due.get(key, float("-inf")) - now
        if wait > 0 and not urgent(old, new):
            self._queue.add_after(key, wait)
            return True
        try:
            answer = await self._cluster.write_status(body, new)
        except Conflict as error:
            tell(logging.INFO, "the object changed; reads it afresh", object=str(key), error=str(error))
            await self._refresh(key, body)
            return False
        except NotFound:
            return False
        self._note(key, now)
        self._store.put(key.kind, answer)
        if (run := parent_key(key.kind, answer)) is not None and not only_figures(old, new):
            self._queue.add_spaced(run, RUN_SECONDS)
        return True

    def _note(self, key: Key, now: float) -> None:
        self._due[key] = now
        self._due.move_to_end(key)
        while next(iter(self._due.values())) < now - FIGURES_PASS_SECONDS:
            self._due.popitem(last=False)
        self._due[key] += self._interval * random.uniform(0.75, 1.25)  # units begin to train together

    @property
    def figures_seconds(self) -> float:
        """Between two looks at an object of which only figures moved."""
        return min(self._interval, FIGURES_PASS_SECONDS)

    @property
    def _interval(self) -> float:
        return max(INTERVAL_SECONDS, len(self._due) / WRITES_PER_SECOND)

    def forget(self, key: Key) -> None:
        self._due.pop(key, None)

    async def _refresh(self, key: Key, body: Object) -> None:
        try:
            self._store.put(key.kind, await self._cluster.get(key.kind, key.namespace, key.name))
        except NotFound:
            self._store.drop(key.kind, body)
        self._queue.add_after(key, 0.05)
