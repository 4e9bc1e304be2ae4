"""The HTTP session of kopf: logs in, asks for metadata alone, and reports lists and problems."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl

from atoll_operator.kube.cache import Object, version_of
from atoll_operator.kube.client import METADATA_LIST, ApiClient, decode
from atoll_operator.kube.gather import back_off

BACK_OFF = 0.25, 1.0
"""Seconds between two tries, at first and at most: after an outage of the API server heals wait for the watches."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
Names = set[tuple[str, str]]
"""Namespace and name of objects."""


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


class KopfHttp:
    """Makes kopf's session.

    Args:
        client: says how to log in.
        scopes: what is watched, by path.
        page: called with each page of a list and its resource version; with the last one come the names of all pages.
        outcome: called with the path of each request, and status code and message of a failure; without an answer the
            code is `unreachable`, after a success empty.
    """

    def __init__(
        self,
        client: ApiClient,
        scopes: Mapping[str, Scope],
        page: Callable[[Scope, list[Object], Names | None, int], None],
        outcome: Callable[[str, str, str], None],
    ) -> None:
        self._client, self._scopes, self._page, self._outcome = client, scopes, page, outcome
        self._names: dict[str, Names] = {}
        """What the pages of a list had until now, by path."""
        self.asked = time.monotonic()

    def session(self) -> aiohttp.ClientSession:
        class Response(aiohttp.ClientResponse):
            async def json(response, **_: Any) -> Any:
                return self._read(response.url, await response.read())

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._client.credentials.context),
            middlewares=(self._send,),
            response_class=Response,
            headers={"Accept-Encoding": "identity"},  # compressing costs more than it saves
        )

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        path, failures = request.url.path, 0
        if (scope := self._scopes.get(path)) is not None and scope.watch.metadata:
            request.headers["Accept"] = METADATA if "watch" in request.url.query else METADATA_LIST
        while True:
            self.asked = time.monotonic()
            request.headers.update(self._client.credentials.headers())
            try:
                response = await handler(request)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._outcome(path, "unreachable", f"{type(error).__name__}: {error}")
                raise
            if response.status < 400:
                self._outcome(path, "", "")
                return response
            message = decode(await response.read()).get("message", "")
            self._outcome(path, str(response.status), message)
            if response.status != 401:
                return response
            failures += 1  # and try again here: kopf would do so without a back-off
            await asyncio.sleep(back_off(failures, *BACK_OFF))

    def _read(self, url: yarl.URL, content: bytes) -> Any:
        """Reports the pages of lists: kopf does not tell its handlers of an empty list, or where one ends."""
        answer, scope = decode(content), self._scopes.get(url.path)
        if scope is None or "items" not in answer:
            return answer
        bodies = answer["items"] = answer["items"] or []  # an empty list of metadata is null
        for body in bodies:  # kopf would do this later, while the main loop reads the body
            body.setdefault("kind", answer["kind"].removesuffix("List"))
            body.setdefault("apiVersion", answer["apiVersion"])
        if "continue" not in url.query:
            self._names[scope.path] = set()
        names = self._names[scope.path]
        names.update((body["metadata"].get("namespace", ""), body["metadata"]["name"]) for body in bodies)
        whole = None if answer["metadata"].get("continue") else names
        self._page(scope, bodies, whole, version_of(answer["metadata"]))
        return answer
