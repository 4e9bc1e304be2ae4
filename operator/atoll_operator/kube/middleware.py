"""What happens to each of kopf's requests on its way: login, metadata alone, and reports of problems."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import msgspec

from atoll_operator.kube.client import METADATA_LIST, ApiClient
from atoll_operator.kube.keys import Object

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
BACK_OFF_SECONDS = 0.25
MAX_BACK_OFF_SECONDS = 1.0
"""Between two tries: after an outage of the API server heals wait for the watches."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A kind to watch."""

    kind: str
    selector: str = ""
    """Of labels, evaluated by the API server."""
    metadata: bool = False
    """Only the metadata of the objects is asked for."""
    cluster_scoped: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """One collection: a kind in one namespace, or in the cluster where that is empty."""

    watch: Watch
    namespace: str
    path: str


class Listener(Protocol):
    """Configures a `KopfThread` and gets what it receives."""

    client: ApiClient
    watches: Sequence[Watch]
    namespaces: Collection[str]

    @property
    def scopes(self) -> Mapping[str, Scope]: ...

    def received(self, kind: str, deleted: bool, body: Object) -> None:
        """Called in the main loop."""

    def opened(self, path: str) -> None:
        """A collection was listed and is watched now; called in the main loop."""

    def problem(self, path: str, code: str, text: str) -> None:
        """A request failed; called in kopf's thread."""

    def solved(self, path: str) -> None:
        """A request succeeded; called in kopf's thread."""


class Middleware:
    """Of an aiohttp session.

    Args:
        opened: called with the path of a collection that was listed and is watched now.
    """

    def __init__(self, listener: Listener, opened: Callable[[str], None]) -> None:
        self._listener = listener
        self._credentials = listener.client.credentials
        self._count_error = listener.client.count_error
        self._opened = opened
        self._relisted: set[str] = set()
        self.asked = time.monotonic()
        """When the last request was sent."""

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        path, watching = request.url.path, "watch" in request.url.query
        scope = self._listener.scopes.get(path)
        if scope is not None and scope.watch.metadata:
            request.headers["Accept"] = METADATA if watching else METADATA_LIST
        failures = 0
        while True:
            self.asked = time.monotonic()
            request.headers.update(self._credentials.headers())
            try:
                response = await handler(request)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._count_error("unreachable")
                self._listener.problem(path, "unreachable", f"{type(error).__name__}: {error}")
                raise
            if response.status < 400:
                break
            self._count_error(str(response.status))
            self._listener.problem(path, str(response.status), _message(await response.text()))
            if response.status != 401:
                return response
            self._credentials.expire()  # and try again here: kopf would do so without a back-off
            failures += 1
            await asyncio.sleep(back_off(failures))
        self._listener.solved(path)
        if scope is not None and not watching:
            self._relisted.add(path)
        elif path in self._relisted:
            self._relisted.discard(path)
            self._opened(path)
        return response


def back_off(failures: int) -> float:
    """Seconds before the next try, with jitter."""
    seconds = min(BACK_OFF_SECONDS * 2.0 ** min(failures - 1, 16), MAX_BACK_OFF_SECONDS)
    return seconds * random.uniform(0.5, 1.0)


class Response(aiohttp.ClientResponse):
    """Decodes faster than the standard library, and repairs an empty list of metadata, whose items are null."""

    async def json(self, **_: Any) -> Any:
        answer = msgspec.json.decode(await self.read())
        if isinstance(answer, dict) and answer.get("items", ()) is None:
            answer["items"] = []
        return answer


def _message(text: str) -> str:
    """The message of a Status, or the text."""
    with contextlib.suppress(msgspec.MsgspecError, LookupError, TypeError):
        return str(msgspec.json.decode(text)["message"])
    return text[:500]
