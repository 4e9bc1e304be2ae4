"""The HTTP session of kopf: logs in, asks for metadata alone, and reports lists and problems."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import yarl

from atoll_operator.kube.cache import version_of
from atoll_operator.kube.client import METADATA_LIST, decode
from atoll_operator.kube.feed import Feed
from atoll_operator.kube.gather import back_off

BACK_OFF = 0.25, 1.0
"""Seconds between two tries of a request, at first and at most: after an outage heals wait for the watches."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class KopfSession:
    """Makes kopf's session. All but the constructor runs in kopf's thread."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.asked = dict.fromkeys(feed.watches, time.monotonic())
        """When each collection was asked for last, by path."""

    def open(self) -> aiohttp.ClientSession:
        class Response(aiohttp.ClientResponse):
            async def json(response, **_: Any) -> Any:
                return self._read(response.url, await response.read())

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._feed.client.credentials.context),
            middlewares=(self._send,),
            response_class=Response,
            headers={"Accept-Encoding": "identity"},  # compressing costs more than it saves
        )

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        path, watch = request.url.path, self._feed.watches.get(request.url.path)
        if watch is not None and watch.metadata:
            request.headers["Accept"] = METADATA if "watch" in request.url.query else METADATA_LIST
        while True:
            if watch is not None:
                self.asked[path] = time.monotonic()
            request.headers.update(self._feed.client.credentials.headers())
            try:
                response = await handler(request)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._failed(path, "unreachable", f"{type(error).__name__}: {error}")
                raise
            if response.status < 400:
                self._feed.post(self._feed.outcome, path)
                return response
            self._failed(path, str(response.status), decode(await response.read()).get("message", ""))
            if response.status != 401:
                return response
            await asyncio.sleep(back_off(2, *BACK_OFF))  # kopf would log in and try again at once

    def _failed(self, path: str, code: str, text: str) -> None:
        self._feed.client.count_error(code)
        self._feed.post(self._feed.outcome, path, text or code, code in ("401", "403"))

    def _read(self, url: yarl.URL, content: bytes) -> Any:
        """Reports lists: kopf does not tell its handlers of an empty one, or where one ends."""
        answer, watch, feed = decode(content), self._feed.watches.get(url.path), self._feed
        if watch is None or "items" not in answer:
            return answer
        bodies = answer["items"] = answer["items"] or []  # an empty list of metadata is null
        for body in bodies:  # kopf would do this later, while the main loop reads the body
            body.setdefault("kind", answer["kind"].removesuffix("List"))
            body.setdefault("apiVersion", answer["apiVersion"])
            feed.post(feed.event, watch.kind, False, body)
        feed.post(feed.listed, watch, bodies, version_of(answer["metadata"]))
        return answer
