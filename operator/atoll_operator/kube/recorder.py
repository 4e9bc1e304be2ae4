"""Writes Kubernetes Events in the background, each occasion once, also after a restart of the operator."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import AlreadyExists, ApiError, NotLeading, Unreachable
from atoll_operator.kube.logs import log

REMEMBERED = 4096
"""Occasions that are remembered, and Events that may wait to be written."""
MESSAGE_LIMIT = 1024
"""The API's limit for an Event."""
Notice = tuple[str, str, str, str]
"""One Event: type, reason, message, occasion. Two of the same reason and occasion are written once."""


class Recorder:
    """Writes Events of a component, one after the other. If one cannot be written, that is logged and the next one
    follows."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client = client
        self._component = component
        self._recorded: OrderedDict[str, None] = OrderedDict()
        self._waiting: asyncio.Queue[Object] = asyncio.Queue(REMEMBERED)

    def record(self, body: Object, notices: Iterable[Notice], now: float) -> None:
        """Logs messages about an object and queues its Events; `now` is in Unix seconds."""
        for notice in notices:
            kind, reason, message, _ = notice
            event = self._event(body, notice, now)
            if (name := event["metadata"]["name"]) in self._recorded:
                continue
            self._recorded[name] = None
            if len(self._recorded) > REMEMBERED:
                self._recorded.popitem(last=False)
            level = logging.INFO if kind == "Normal" else logging.WARNING
            log(level, message, object=_about(event), reason=reason)
            if self._waiting.full():  # the log has it
                self._waiting.get_nowait()
            self._waiting.put_nowait(event)

    async def run(self) -> None:
        while True:
            event = await self._waiting.get()
            try:
                await self._client.create(event)
            except AlreadyExists:
                pass
            except (ApiError, NotLeading, Unreachable) as error:
                fields = {"reason": event["reason"], "error": str(error)}
                log(logging.WARNING, "an Event could not be written", object=_about(event), **fields)

    def _event(self, body: Object, notice: Notice, now: float) -> Object:
        (kind, reason, message, occasion), metadata = notice, body["metadata"]
        digest = hashlib.sha256("\0".join((metadata["uid"], reason, occasion)).encode()).hexdigest()
        name = f"{metadata['name']}.{digest[:16]}"
        moment = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {key: metadata[key] for key in ("name", "namespace", "uid")}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": about | {key: body[key] for key in ("apiVersion", "kind")},
            "type": kind,
            "reason": reason,
            "message": message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…",
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }


def _about(event: Object) -> str:
    about = event["involvedObject"]
    return f"{about['kind']} {about['namespace']}/{about['name']}"
