"""Kubernetes Events: each occasion is told once, also by an operator that was started again. No heal waits for one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable

from atoll_operator.api.group import MANAGER, Object
from atoll_operator.kube.client import Cluster
from atoll_operator.kube.errors import AlreadyExists, ApiError, NotLeading, Unreachable
from atoll_operator.kube.logs import tell
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.notice import Notice

REMEMBERED = 4096
"""Occasions; also the Events that may wait to be written."""
MESSAGE_LIMIT = 1024
"""The API's limit for an Event."""


class Announcer:
    """Writes Events one after the other; a failure is logged and changes nothing else."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: OrderedDict[str, None] = OrderedDict()
        self._waiting: deque[Object] = deque(maxlen=REMEMBERED)
        self._dropped = 0
        """Events that gave way to later ones, and nobody was told of yet."""
        self._wake = asyncio.Event()

    def tell(self, body: Object, notices: Iterable[Notice], now: float) -> None:
        """About one object: logs at once, and leaves the Event to `run`."""
        for notice in notices:
            self._tell(body, notice, now)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._write(self._waiting.popleft())
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                tell(
                    logging.WARNING,
                    "more Events waited than are kept; the oldest were dropped",
                    events=dropped,
                )

    def _tell(self, body: Object, notice: Notice, now: float) -> None:
        metadata = body["metadata"]
        occasion = "\0".join((metadata["uid"], notice.reason, notice.occasion))
        name = f"{metadata['name']}.{hashlib.sha256(occasion.encode()).hexdigest()[:16]}"
        if name in self._told:
            return
        self._told[name] = None
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        level = logging.INFO if notice.type == "Normal" else logging.WARNING
        about = f"{body['kind']} {metadata['namespace']}/{metadata['name']}"
        tell(level, notice.message, object=about, reason=notice.reason)
        self._dropped += len(self._waiting) == REMEMBERED
        self._waiting.append(_event(body, notice, name, now))
        self._wake.set()

    async def _write(self, event: Object) -> None:
        try:
            await self._cluster.create(event)
        except AlreadyExists:
            return
        except (ApiError, NotLeading, Unreachable) as error:
            about = event["involvedObject"]
            tell(
                logging.WARNING,
                "an Event could not be written",
                object=f"{about['kind']} {about['namespace']}/{about['name']}",
                reason=event["reason"],
                error=str(error),
            )


def _event(body: Object, notice: Notice, name: str, now: float) -> Object:
    metadata = body["metadata"]
    moment = format_time(now)[:19] + "Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": notice.type,
        "reason": notice.reason,
        "message": notice.message[:MESSAGE_LIMIT],
        "source": {"component": f"{MANAGER}-operator"},
        "reportingComponent": f"{MANAGER}-operator",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
