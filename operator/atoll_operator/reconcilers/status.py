"""Writes the status of a run or unit: once per pass, not without a change, and progress figures at a bounded rate."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from atoll_operator.api.group import Object
from atoll_operator.cluster import Cluster
from atoll_operator.kube.cache import Key
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.plan.conditions import only_figures
from atoll_operator.reconcilers.inventory import Inventory, parent_key
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS, RUN_SECONDS


@dataclass(slots=True)
class StatusMemory:
    """What a reconciler remembers of the writes of one object's status."""

    due: float = float("-inf")
    """Monotonic seconds from which figures alone are written again."""


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes only over the version that the plan saw."""

    cluster: Cluster
    inventory: Inventory
    queue: WorkQueue[Key]

    async def write(self, key: Key, body: Object, status: Object, memory: StatusMemory) -> None:
        """Puts a write of figures off where it is not due.

        Raises:
            Conflict: the object changed meanwhile; the watch tells how.
            NotFound: it was deleted.
        """
        old = body.get("status", {})
        if status == old:
            return
        figures, now = only_figures(old, status), time.monotonic()
        if figures and now < memory.due:
            self.queue.add_after(key, memory.due - now)
            return
        answer = await self.cluster.write_status(body, status)
        # With jitter, because many units begin to train together.
        memory.due = now + FIGURES_SECONDS[key.kind] * random.uniform(0.8, 1.0)
        self.inventory.put(key.kind, answer)
        # The watch tells nothing new about a write of our own.
        if not figures and (run := parent_key(key.kind, body)) is not None:
            self.queue.add_spaced(run, RUN_SECONDS)
