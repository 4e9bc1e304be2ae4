"""A thin asynchronous client of the API server: the hot path, without models.

The generated client would add 85 MiB and refuse plain dictionaries; this one knows the nine kinds that we touch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from atoll_operator.api.group import FIELD_MANAGER, Object
from atoll_operator.kube.credentials import Credentials
from atoll_operator.kube.errors import Conflict, NotFound, NotLeading, Refused, Unreachable, of_status
from atoll_operator.kube.keys import version_of
from atoll_operator.kube.paths import OUR_PREFIX, PLURALS, collection, item
from atoll_operator.kube.patience import patience
from atoll_operator.kube.window import Window
from atoll_operator.metrics.process import Metrics

CONNECTIONS = 32
AT_ONCE = CONNECTIONS // 4
"""Units or Secrets of a run that are looked for, made or deleted at a time; the other connections are for pods."""
FIRST = 8
"""Requests at a time after a rest."""
REST_SECONDS = 1.0
TRIES = 5
BACK_OFF_SECONDS = 0.2
PATIENCE_SECONDS = 10.0
"""Between two tries at most, however long the API server asks to be left alone: heals wait for it."""
TIME_OUT = aiohttp.ClientTimeout(total=20, sock_connect=5)
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: Object | None = None
    parameters: Mapping[str, str] | None = None
    content_type: str = JSON
    accept: str = JSON


class Cluster:
    """Use as an async context manager. Methods raise ApiError and Unreachable, those that write NotLeading too.

    Args:
        time_out: of one try.
        patience: seconds between two tries for which the API server may ask at most.
        may_write: asked before each try of a write, so that a process that was paused writes nothing late.
    """

    def __init__(
        self,
        credentials: Credentials,
        metrics: Metrics,
        *,
        time_out: aiohttp.ClientTimeout = TIME_OUT,
        patience: float = PATIENCE_SECONDS,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._credentials = credentials
        self._metrics = metrics
        self._time_out = time_out
        self._patience = patience
        self._may_write = may_write
        self._session: aiohttp.ClientSession | None = None
        self._slots = Window(FIRST, CONNECTIONS, REST_SECONDS)
        """Whoever waits for a connection waits here: the time-out of a try is not for that."""

    async def __aenter__(self) -> Cluster:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._credentials.context)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._time_out)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def check_served(self) -> None:
        """Whether the API server serves our kinds.

        Raises:
            Unreachable: not all of them.
        """
        wanted = {plural for prefix, plural in PLURALS.values() if prefix == OUR_PREFIX}
        try:
            served = await self._call(_Request("GET", OUR_PREFIX))
            missing = wanted - {item["name"] for item in served["resources"]}
        except NotFound:
            missing = wanted
        if missing:
            raise Unreachable(f"{OUR_PREFIX} does not serve {', '.join(sorted(missing))}; apply crds/ first")

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._call(_Request("GET", item(kind, namespace, name)))

    async def pods(self, namespace: str, selector: str) -> list[Object]:
        """A consistent list, newer than any watch."""
        bodies, _ = await self.list("Pod", namespace, selector)
        return bodies

    async def list(self, kind: str, namespace: str, selector: str = "") -> tuple[list[Object], int]:
        """All objects of a namespace, or of the cluster where that is empty, and the version of the list."""
        parameters = {"labelSelector": selector} if selector else None
        answer = await self._call(_Request("GET", collection(kind, namespace), parameters=parameters))
        return answer["items"], version_of(answer["metadata"])

    async def may_watch_nodes(self) -> bool:
        """Nodes belong to no namespace: an operator that is limited to some may have no right to them."""
        try:
            await self._call(_Request("GET", "/api/v1/nodes", parameters={"limit": "1"}))
        except Refused:
            return False
        return True

    async def create(self, body: Object) -> Object:
        """Names are deterministic, so that a second try of a create that did arrive ends as AlreadyExists."""
        path = collection(body["kind"], body["metadata"]["namespace"])
        return await self._call(_Request("POST", path, body, {"fieldManager": FIELD_MANAGER}))

    async def apply(self, body: Object) -> Object:
        """Server-side apply: what we name is ours, what others added stays."""
        path = item(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._call(_Request("PATCH", path, body, _OURS, APPLY))

    async def replace(self, body: Object) -> Object:
        """The whole object, only if it is still the version that `body` has.

        Raises:
            Conflict: it is not.
        """
        path = item(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._call(_Request("PUT", path, body, {"fieldManager": FIELD_MANAGER}))

    async def annotate(
        self, kind: str, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Object:
        """Adds to the object of that uid.

        Raises:
            Conflict: the name is another object's by now.
        """
        change = {"uid": uid, "annotations": dict(annotations)}
        return await self._change(item(kind, namespace, name), change, MERGE)

    async def release(self, kind: str, namespace: str, name: str, uid: str, finalizer: str) -> Object:
        """Takes one finalizer away from the object of that uid.

        Raises:
            Conflict: the name is another object's by now.
        """
        change = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}
        return await self._change(item(kind, namespace, name), change, STRATEGIC)

    async def _change(self, path: str, metadata: Object, content_type: str) -> Object:
        request = _Request(
            "PATCH", path, {"metadata": metadata}, {"fieldManager": FIELD_MANAGER}, content_type
        )
        try:
            return await self._call(request)
        except Refused as error:
            if "metadata.uid" in str(error):  # to the API server a patch to another uid is an invalid one
                raise Conflict(error.status, error.reason, str(error)) from error
            raise

    async def write_status(self, body: Object, status: Object) -> Object:
        """The whole status, only if the object is still the version that `body` is; nothing else of it is read.

        Not by server-side apply: that costs the API server half as much again (docs/decisions/0037), and no field of a
        status is anybody else's.

        Raises:
            Conflict: it is not.
            Refused: the definition that is served lacks a field; what is planned later would miss it.
        """
        metadata = body["metadata"]
        kept = {key: metadata[key] for key in ("name", "namespace", "resourceVersion", "uid")}
        change = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": kept, "status": status}
        path = item(body["kind"], metadata["namespace"], metadata["name"]) + "/status"
        return await self._call(_Request("PUT", path, change, _STRICTLY))

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", grace_seconds: int | None = None
    ) -> Object:
        """Only the object of that uid, when one is given; dependants go in the background."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._call(_Request("DELETE", item(kind, namespace, name), options))

    async def _call(self, request: _Request) -> Object:
        """With tries on 401, 429, 5xx and lost connections; back-off doubles, with full jitter on top, and is as long
        as the API server asks for."""
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
                self._metrics.api_errors.labels("unreachable").inc()
                problem = f"{type(error).__name__}: {error}"
                continue
            if status < 400:
                return answer
            self._metrics.api_errors.labels(str(status)).inc()
            problem = str(answer.get("message", status))
            if status == 401:
                self._credentials.expire()
            elif status != 429 and status < 500:
                raise of_status(status, str(answer.get("reason", "")), problem, _cause(answer))
        raise Unreachable(f"{request.method} {request.path}: {problem}")

    async def _send(self, request: _Request) -> tuple[int, Object, float]:
        """Status, answer, and the seconds for which the API server asks to be left alone."""
        if self._session is None:
            raise RuntimeError("the cluster is used outside its context")
        async with self._session.request(
            request.method,
            self._credentials.server + request.path,
            params=request.parameters,
            data=None if request.body is None else msgspec.json.encode(request.body),
            # Compressing costs the API server more than the network saves.
            headers=self._credentials.headers()
            | {
                "Content-Type": request.content_type,
                "Accept": request.accept,
                "Accept-Encoding": "identity",
            },
        ) as response:
            content = await response.read()
            try:
                answer: Any = msgspec.json.decode(content)
            except msgspec.DecodeError:
                answer = {"message": content[:500].decode(errors="replace")}
            return response.status, answer, patience(response.headers, self._patience)


_OURS = {"fieldManager": FIELD_MANAGER, "force": "true"}
_STRICTLY = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}


def _cause(answer: Object) -> str:
    causes = answer.get("details", {}).get("causes") or [{}]
    return str(causes[0].get("reason", ""))
