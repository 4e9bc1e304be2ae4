"""Sends requests to an API server, with retries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec

from atoll_operator.kube.errors import NotLeading, Unreachable, of_status
from atoll_operator.kube.keys import Object
from atoll_operator.kube.login import Credentials

CONNECTIONS = 32
TRIES = 5
BACK_OFF_SECONDS = 0.1
RETRY_AFTER_SECONDS = 10.0
"""Longest wait between two tries, whatever the API server asks for."""
TIME_OUT = aiohttp.ClientTimeout(total=20, sock_connect=5)
JSON = "application/json"


class Resource(NamedTuple):
    """Where an API server has the objects of a kind."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """The path of a collection, in one namespace or in the cluster, or of one object."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{prefix}{scope}/{self.plural}" + (f"/{name}" if name else "")


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the path has no server."""

    method: str
    path: str
    body: Object | None = None
    parameters: Mapping[str, str] | None = None
    content_type: str = JSON
    accept: str = JSON


class Transport:
    """Use as an async context manager. Methods raise ApiError and Unreachable; those that write also NotLeading.

    Args:
        resources: by kind.
        manager: name under which fields are owned.
        count_error: called with the status code of each error, or `unreachable`.
        time_out: of one try.
        longest_wait: seconds between two tries at most.
        may_write: asked before each try of a write, so that a process that was paused does not write late.
    """

    def __init__(
        self,
        credentials: Credentials,
        resources: Mapping[str, Resource],
        manager: str,
        count_error: Callable[[str], None],
        *,
        time_out: aiohttp.ClientTimeout = TIME_OUT,
        longest_wait: float = RETRY_AFTER_SECONDS,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.credentials = credentials
        self.resources = resources
        self.manager = manager
        self.count_error = count_error
        self._time_out = time_out
        self._longest_wait = longest_wait
        self._may_write = may_write
        self._session: aiohttp.ClientSession | None = None
        # Requests wait here for a connection, because the time-out of a try must not cover that.
        self._slots = asyncio.Semaphore(CONNECTIONS)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self.credentials.context)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._time_out)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(self, request: Request) -> Object:
        """Retries on 401, 429, 5xx and lost connections with exponential back-off, or after `Retry-After`."""
        problem, asked = "", 0.0
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(max(asked, BACK_OFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0)))
            asked = 0.0
            try:
                async with self._slots:
                    if request.method != "GET" and not self._may_write():
                        raise NotLeading(f"{request.method} {request.path}: another operator may lead by now")
                    status, answer, asked = await self._send(request)
            except (aiohttp.ClientError, TimeoutError) as error:
                self.count_error("unreachable")
                problem = f"{type(error).__name__}: {error}"
                continue
            if status < 400:
                return answer
            self.count_error(str(status))
            problem = str(answer.get("message", status))
            if status == 401:
                self.credentials.expire()
            elif status != 429 and status < 500:
                raise of_status(status, str(answer.get("reason", "")), problem, _cause(answer))
        raise Unreachable(f"{request.method} {request.path}: {problem}")

    async def _send(self, request: Request) -> tuple[int, Object, float]:
        """Returns status, answer, and the seconds to wait before the next try."""
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        async with self._session.request(
            request.method,
            self.credentials.server + request.path,
            params=request.parameters,
            data=None if request.body is None else msgspec.json.encode(request.body),
            # Compressing costs the API server more than the network saves.
            headers=self.credentials.headers()
            | {"Content-Type": request.content_type, "Accept": request.accept, "Accept-Encoding": "identity"},
        ) as response:
            content = await response.read()
            try:
                answer: Any = msgspec.json.decode(content)
            except msgspec.DecodeError:
                answer = {"message": content[:500].decode(errors="replace")}
            return response.status, answer, retry_after(response.headers, self._longest_wait)


def retry_after(headers: Mapping[str, str], longest: float) -> float:
    """Seconds of `Retry-After`, at most `longest`; 0 where there is none, or a date."""
    after = headers.get("Retry-After", "")
    return min(float(after), longest) if after.isdecimal() else 0.0


def _cause(answer: Object) -> str:
    causes = answer.get("details", {}).get("causes") or [{}]
    return str(causes[0].get("reason", ""))
