"""Writes Kubernetes Events in the background, each occasion once, also after a restart of the operator."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Literal, Protocol

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import AlreadyExists, ApiError, NotLeading, Unreachable
from atoll_operator.kube.logs import tell

REMEMBERED = 4096
"""Occasions that are remembered, and Events that may wait to be written."""
MESSAGE_LIMIT = 1024
"""The API's limit for an Event."""


class Notice(Protocol):
    """One Event. Two notices of the same reason and occasion are written once."""

    @property
    def type(self) -> Literal["Normal", "Warning"]: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def occasion(self) -> str: ...


class Recorder:
    """Writes Events one after the other. A failure is logged and changes nothing else.

    Args:
        component: the name under which Events are reported.
    """

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client = client
        self._component = component
        self._told: OrderedDict[str, None] = OrderedDict()
        self._waiting: deque[Object] = deque(maxlen=REMEMBERED)
        self._dropped = 0
        """Events that were dropped since the last log line about it."""
        self._wake = asyncio.Event()

    def tell(self, body: Object, notices: Iterable[Notice], now: float) -> None:
        """Logs messages about an object and queues its Events; `now` is in Unix seconds."""
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
        self._waiting.append(self._event(body, notice, name, now))
        self._wake.set()

    async def _write(self, event: Object) -> None:
        try:
            await self._client.create(event)
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

    def _event(self, body: Object, notice: Notice, name: str, now: float) -> Object:
        metadata = body["metadata"]
        moment = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
