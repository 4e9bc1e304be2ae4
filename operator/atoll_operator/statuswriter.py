"""One status write per pass, none without a change, and writes of figures alone at a bounded rate."""

from __future__ import annotations

import logging
import time

from pydantic import BaseModel

from atoll_operator.api.group import Object
from atoll_operator.cluster import Cluster
from atoll_operator.errors import Conflict, NotFound
from atoll_operator.keys import Key, parent_key
from atoll_operator.logs import tell
from atoll_operator.plan.conditions import document, urgent
from atoll_operator.store import Store
from atoll_operator.workqueue import WorkQueue

INTERVAL_SECONDS = 2.0
"""Between two writes of one object for the sake of figures."""
WRITES_PER_SECOND = 20.0
"""Of figures, for all objects of a kind together, so that those of a thousand units are 50 s old at most."""
RUN_SECONDS = 1.0
"""Between two passes over a run for the sake of its units: each adds up all of them."""


class StatusWriter:
    """Writes only over the version that the plan saw."""

    def __init__(self, cluster: Cluster, store: Store, queue: WorkQueue[Key]) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._written: dict[Key, float] = {}

    async def write(self, key: Key, body: Object, status: BaseModel) -> bool:
        """Whether the status is now as planned, or only a write of figures was put off.

        False when the object changed meanwhile; it is then read afresh and the key comes back.
        """
        new = document(status)
        old = body.get("status", {})
        if new == old:
            return True
        now = time.monotonic()
        interval = max(INTERVAL_SECONDS, len(self._written) / WRITES_PER_SECOND)
        wait = self._written.get(key, float("-inf")) + interval - now
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
        self._written[key] = now
        self._store.put(key.kind, answer)
        if (run := parent_key(key.kind, answer)) is not None:
            self._queue.add_spaced(run, RUN_SECONDS)
        return True

    def forget(self, key: Key) -> None:
        self._written.pop(key, None)

    async def _refresh(self, key: Key, body: Object) -> None:
        try:
            self._store.put(key.kind, await self._cluster.get(key.kind, key.namespace, key.name))
        except NotFound:
            self._store.drop(key.kind, body)
        self._queue.add_after(key, 0.05)
