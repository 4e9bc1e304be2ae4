"""Asynchronous client of an API server for plain JSON objects, with retries (why: docs/decisions/kube.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Self

import aiohttp
import msgspec

from atoll_operator.kube.cache import Object, brief, version_of
from atoll_operator.kube.errors import Conflict, NotLeading, Refused, Unreachable, is_final, of_status
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.queue import back_off

CONNECTIONS = 32
AT_ONCE = CONNECTIONS // 4
"""Requests that one caller may send at a time for work that is less urgent than pods."""
TRIES = 5
BACK_OFF_SECONDS = 0.15
RETRY_AFTER_SECONDS = 10.0
"""Longest wait between two tries, whatever the API server asks for."""
TIME_OUT = aiohttp.ClientTimeout(total=20, sock_connect=5)
CREATE_TIME_OUT = aiohttp.ClientTimeout(total=40, sock_connect=5)
"""The API server waits for a webhook that hangs for up to 30 s, and only then says so. It ends a create after 34 s."""
PAGE = 100
"""Objects in a page of a list. Each may have hundreds of KiB, and a page is held as a whole."""
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Resource(NamedTuple):
    """Where an API server serves the objects of a kind. The core group is empty."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{prefix}{scope}/{self.plural}" + (f"/{name}" if name else "")


class ApiClient:
    """Use as an async context manager. Methods raise ApiError and Unreachable; those that write also NotLeading.
    `count_error` gets the status code of each error, or `unreachable`. `time_out` is for one try, and also bounds
    the wait between two tries; with the default, what may create an object has more time. `may_write` is asked
    before each try of a write, so that a process that was paused does not write late."""

    def __init__(
        self,
        credentials: Credentials,
        resources: Mapping[str, Resource],
        manager: str,
        count_error: Callable[[str], None],
        *,
        time_out: aiohttp.ClientTimeout = TIME_OUT,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.credentials, self.resources, self.count_error = credentials, resources, count_error
        self._manager = {"fieldManager": manager}
        self._time_out, self._may_write = time_out, may_write
        self._longest_wait = min(RETRY_AFTER_SECONDS, time_out.total or RETRY_AFTER_SECONDS)
        self._session: aiohttp.ClientSession | None = None
        self.under_way = 0
        """Number of open requests, including those that wait for a connection or for their next try."""
        # Requests wait here for a connection, because the time-out of a try must not cover that.
        self._slots = asyncio.Semaphore(CONNECTIONS)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self.credentials.context)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def may_list(self, kind: str) -> bool:
        """Whether the API server allows a list of the whole cluster."""
        with contextlib.suppress(Refused):
            await self._call("GET", self._path(kind, ""), parameters={"limit": "1"})
            return True
        return False

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._call("GET", self._path(kind, namespace, name))

    async def pages(
        self, kind: str, namespace: str, selector: str = "", accept: str = JSON
    ) -> AsyncIterator[tuple[list[Object], int]]:
        """All objects of a namespace, or of the cluster if that is empty: page by page, each with the list's resource
        version. A page is asked for when the one before has been taken."""
        parameters = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            answer = await self._call("GET", self._path(kind, namespace), None, parameters, accept=accept)
            # Not kept here while the next page is read. An empty list of metadata is null.
            yield answer.pop("items") or [], version_of(answer["metadata"])
            if not (token := answer["metadata"].get("continue")):
                return
            parameters = {**parameters, "continue": token}

    async def list(self, kind: str, namespace: str, selector: str = "") -> tuple[list[Object], int]:
        """The `brief` parts of these objects, because all metadata of 10,000 pods take 250 MiB, and the list's resource
        version."""
        bodies, newest = list[Object](), 0
        async for items, version in self.pages(kind, namespace, selector, METADATA_LIST):
            bodies += map(brief, items)
            newest = version
        return bodies, newest

    async def create(self, body: Object) -> Object:
        """Raises AlreadyExists, also if an earlier try arrived and its answer was lost, and Refused if a field is
        unknown."""
        path = self._path(body["kind"], body["metadata"]["namespace"])
        return await self._call("POST", path, body, {**self._manager, "fieldValidation": "Strict"})

    async def apply(self, body: Object) -> Object:
        """Server-side apply, by force: the fields in `body` become ours, fields of other managers stay."""
        parameters = {**self._manager, "force": "true"}
        return await self._call("PATCH", self._path_of(body), body, parameters, APPLY)

    async def replace(self, body: Object) -> Object:
        """Writes the whole object. Raises Conflict if it no longer has the version in `body`."""
        return await self._call("PUT", self._path_of(body), body, self._manager)

    async def patch_metadata(
        self, kind: str, namespace: str, name: str, uid: str, content_type: str = MERGE, **change: object
    ) -> Object:
        """Changes metadata of the object with this uid. Raises Conflict if the object of that name has another uid."""
        path, body = self._path(kind, namespace, name), {"metadata": {"uid": uid, **change}}
        try:
            return await self._call("PATCH", path, body, self._manager, content_type)
        except Refused as error:
            if "metadata.uid" in str(error):  # the API server calls a patch with another uid invalid
                raise Conflict(str(error)) from error
            raise

    async def write_status(self, body: Object, status: Object) -> Object:
        """Replaces the whole status; the API server drops fields that the CRD lacks. A PUT costs two thirds of a
        server-side apply. Raises Conflict if the object no longer has the version in `body`."""
        metadata = {key: body["metadata"][key] for key in ("name", "namespace", "resourceVersion", "uid")}
        change = {key: body[key] for key in ("apiVersion", "kind")} | {"metadata": metadata, "status": status}
        return await self._call("PUT", self._path_of(body) + "/status", change, self._manager)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> Object:
        """Deletes the object with this uid. Its dependants are deleted in the background."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        options |= {"preconditions": {"uid": uid}, "gracePeriodSeconds": grace_seconds}
        return await self._call("DELETE", self._path(kind, namespace, name), options)

    def _path(self, kind: str, namespace: str, name: str = "") -> str:
        return self.resources[kind].path(namespace, name)

    def _path_of(self, body: Object) -> str:
        return self._path(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])

    async def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        parameters: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        """Retries on 401, 429, 5xx and lost connections with exponential back-off, or after `Retry-After`."""
        assert self._session is not None, "the client is used outside its context"
        data, problem, asked = None if body is None else msgspec.json.encode(body), "", 0.0
        # Compressing costs the API server more than the network saves.
        headers = {"Content-Type": content_type, "Accept": accept, "Accept-Encoding": "identity"}
        creates = self._time_out is TIME_OUT and (method == "POST" or content_type == APPLY)
        limit = CREATE_TIME_OUT if creates else self._time_out
        url = self.credentials.server + path
        self.under_way += 1
        try:
            for attempt in range(TRIES):
                if attempt:
                    await asyncio.sleep(max(asked, back_off(attempt, BACK_OFF_SECONDS, RETRY_AFTER_SECONDS)))
                asked, now = 0.0, {**headers, **self.credentials.headers()}
                try:
                    async with self._slots:
                        if method != "GET" and not self._may_write():
                            raise NotLeading(f"{method} {path}: another operator may lead by now")
                        async with self._session.request(
                            method, url, params=parameters, data=data, headers=now, timeout=limit
                        ) as response:
                            after = response.headers.get("Retry-After", "")  # a date is ignored
                            asked = min(float(after), self._longest_wait) if after.isdecimal() else 0.0
                            status, answer = response.status, decode(await response.read())
                except (aiohttp.ClientError, TimeoutError) as error:
                    self.count_error("unreachable")
                    problem = f"{type(error).__name__}: {error}"
                    continue
                if status < 400:
                    return answer
                self.count_error(str(status))
                problem = str(answer.get("message", status))
                if is_final(status, problem):
                    raise of_status(status, str(answer.get("reason", "")), problem)
            raise Unreachable(f"{method} {path}: {problem}")
        finally:
            self.under_way -= 1


def decode(content: bytes) -> Object:
    """The answer. If it is not a JSON object, its beginning as a message."""
    with contextlib.suppress(msgspec.DecodeError):
        if isinstance(answer := msgspec.json.decode(content), dict):
            return answer
    return {"message": content[:500].decode(errors="replace")}
