"""Writes the status of an object: once per pass, not without a change, and progress figures at a bounded rate."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping

from atoll_operator.kube.cache import Cache
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.keys import Key, Object
from atoll_operator.kube.logs import tell

REFRESH_SECONDS = 0.05


class StatusWriter:
    """Writes only over the version that the plan saw.

    Args:
        figures: whether two statuses differ only in progress figures.
        seconds: by kind, the time between two writes for the sake of figures.
        enqueue: adds a key after a delay in seconds.
        written: called after a write with the key, the answer, and whether only figures changed.
    """

    def __init__(
        self,
        client: ApiClient,
        cache: Cache,
        *,
        figures: Callable[[Object, Object], bool],
        seconds: Mapping[str, float],
        enqueue: Callable[[Key, float], None],
        written: Callable[[Key, Object, bool], None],
    ) -> None:
        self._client = client
        self._cache = cache
        self._figures = figures
        self._seconds = seconds
        self._enqueue = enqueue
        self._written = written
        self._due: dict[Key, float] = {}
        """Monotonic seconds from which figures alone are written again."""

    async def write(self, key: Key, body: Object, status: Object) -> bool:
        """Whether the status is now as planned, or a write of figures was put off.

        False where the object changed meanwhile: it is read again and its key comes back.
        """
        old = body.get("status", {})
        if status == old:
            return True
        figures = self._figures(old, status)
        now = time.monotonic()
        wait = self._due.get(key, now) - now
        if figures and wait > 0:
            self._enqueue(key, wait)
            return True
        try:
            answer = await self._client.write_status(body, status)
        except Conflict as error:
            tell(logging.INFO, "the object changed; reads it again", object=str(key), error=str(error))
            await self._refresh(key, body)
            return False
        except NotFound:
            return False
        # With jitter, because many units begin to train together.
        self._due[key] = now + self._seconds[key.kind] * random.uniform(0.8, 1.0)
        self._cache.put(key.kind, answer)
        self._written(key, answer, figures)
        return True

    def forget(self, key: Key) -> None:
        """The object was deleted."""
        self._due.pop(key, None)

    async def _refresh(self, key: Key, body: Object) -> None:
        try:
            self._cache.put(key.kind, await self._client.get(key.kind, key.namespace, key.name))
        except NotFound:
            self._cache.delete(key.kind, body)
        self._enqueue(key, REFRESH_SECONDS)
