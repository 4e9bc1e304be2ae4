"""A bare asynchronous client of an API server, without retries, cache or logic."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import aiohttp

from atoll_cli.errors import CommandError

T = TypeVar("T")
Object = dict[str, Any]
JSON = "application/json"
MERGE = "application/merge-patch+json"
CALL_SECONDS = 120.0
LINE_LIMIT = 2**20
"""Bytes of one object in a watch."""


class Client:
    """Use as an async context manager. `connections` is the largest number of concurrent calls."""

    def __init__(self, server: str, context: ssl.SSLContext, connections: int, token: str = "") -> None:
        """Needs a running event loop."""
        self._session = aiohttp.ClientSession(
            base_url=server,
            connector=aiohttp.TCPConnector(limit=connections, ssl=context),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self, method: str, path: str, body: Object | None = None, *, kind: str = JSON, missing: bool = False
    ) -> Object:
        """Returns the answer, or an empty one for a 404 if `missing`. Raises `CommandError` for any other refusal."""
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.read()
            if answer.status == 404 and missing:
                return {}
            if answer.status >= 400:
                raise CommandError(f"{method} {path}: {answer.status}: {text[:500].decode(errors='replace')}")
            found: Object = json.loads(text)
            return found

    async def text(self, path: str) -> str:
        """Returns an answer that is not JSON, such as metrics."""
        async with self._session.get(path) as answer:
            return await answer.text()

    async def watch(self, path: str) -> AsyncIterator[bytes]:
        """Yields the lines of a watch until it ends."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self._session.get(path, timeout=timeout, read_bufsize=LINE_LIMIT) as answer:
            if answer.status != 200:
                raise CommandError(f"GET {path}: {answer.status}")
            async for line in answer.content:
                yield line


async def until(what: str, check: Callable[[], Awaitable[T]], seconds: float, interval: float) -> T:
    """Calls `check` until its result is true, and returns that. Raises `CommandError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := await check()):
        if time.monotonic() > deadline:
            raise CommandError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(interval)
    return found


def url(kind: str, namespace: str, name: str = "") -> str:
    """The path of a kind's collection in a namespace, or of one object. `kind` is the plural."""
    group = "apis/atoll.dev/v1alpha1" if kind in ("learnerunits", "trainingruns") else "api/v1"
    return f"/{group}/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


async def fail(client: Client, namespace: str, name: str) -> None:
    """Reports a pod as failed, as its kubelet would. Does nothing if the pod is gone already."""
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    required = {"image": "none", "imageID": "", "ready": False, "restartCount": 0}
    container = {"name": "main", "state": state, **required}
    status = {"phase": "Failed", "containerStatuses": [container]}
    await client.call(
        "PATCH", url("pods", namespace, name) + "/status", {"status": status}, kind=MERGE, missing=True
    )
