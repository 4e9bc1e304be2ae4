"""Writes the status of an object: once per pass, not without a change, and progress figures at a bounded rate."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atoll_operator.kube.cache import Cache, Key, Object
from atoll_operator.kube.client import ApiClient


@dataclass(slots=True)
class StatusMemory:
    """What a reconciler remembers of the writes of one object's status."""

    due: float = float("-inf")
    """Monotonic seconds from which figures alone are written again."""


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes only over the version that the plan saw."""

    client: ApiClient
    cache: Cache
    figures: Callable[[Object, Object], bool]
    """Whether two statuses differ only in progress figures."""
    seconds: Mapping[str, float]
    """By kind, the time between two writes for the sake of figures."""
    enqueue: Callable[[Key, float], None]
    """Adds a key after a delay in seconds."""
    written: Callable[[Key, Object, bool], None]
    """Called after a write with the key, the answer, and whether only figures changed."""

    async def write(self, key: Key, body: Object, status: Object, memory: StatusMemory) -> None:
        """Puts a write of figures off where it is not due.

        Raises:
            Conflict: the object changed meanwhile; the watch tells how.
            NotFound: it was deleted.
        """
        old = body.get("status", {})
        if status == old:
            return
        figures, now = self.figures(old, status), time.monotonic()
        if figures and now < memory.due:
            self.enqueue(key, memory.due - now)
            return
        answer = await self.client.write_status(body, status)
        # With jitter, because many units begin to train together.
        memory.due = now + self.seconds[key.kind] * random.uniform(0.8, 1.0)
        self.cache.put(key.kind, answer)
        self.written(key, answer, figures)
