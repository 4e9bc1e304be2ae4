"""Asynchronous client of an API server for plain JSON objects.

The generated client would add 85 MiB and refuses plain dictionaries.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

from atoll_operator.kube.errors import Conflict, Refused, Unreachable
from atoll_operator.kube.keys import Object, version_of
from atoll_operator.kube.logs import tell
from atoll_operator.kube.transport import CONNECTIONS, JSON, Request, Transport

T = TypeVar("T")
AT_ONCE = CONNECTIONS // 4
"""Requests that one caller may send at a time for work that is less urgent than pods."""
START_SECONDS = 120.0
PAGE = 500
"""Objects in one answer to a list."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiClient(Transport):
    """The verbs of the API. See `Transport` for the arguments and errors."""

    async def served(self, prefix: str) -> set[str]:
        """Plurals that the API server serves in a group and version. Raises NotFound."""
        return {item["name"] for item in (await self._call(Request("GET", prefix)))["resources"]}

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._call(Request("GET", self._path(kind, namespace, name)))

    async def pages(
        self, kind: str, namespace: str, selector: str = "", metadata: bool = False
    ) -> AsyncIterator[tuple[list[Object], int]]:
        """A consistent list, page by page, each with the list's resource version.

        Args:
            metadata: ask for the metadata of the objects alone.
        """
        parameters = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        accept = METADATA_LIST if metadata else JSON
        while True:
            request = Request("GET", self._path(kind, namespace), None, parameters, accept=accept)
            answer = await self._call(request)
            # An empty list of metadata is null.
            yield answer["items"] or [], version_of(answer["metadata"])
            token = answer["metadata"].get("continue", "")
            if not token:
                return
            parameters = {**parameters, "continue": token}

    async def list(self, kind: str, namespace: str, selector: str = "") -> tuple[list[Object], int]:
        """All objects of a namespace, or of the cluster where that is empty, and the list's resource version."""
        pages = [page async for page in self.pages(kind, namespace, selector)]
        return [body for bodies, _ in pages for body in bodies], pages[-1][1]

    async def may_list(self, kind: str) -> bool:
        """Whether the API server allows a list of the whole cluster."""
        try:
            await self._call(Request("GET", self._path(kind, ""), parameters={"limit": "1"}))
        except Refused:
            return False
        return True

    async def create(self, body: Object) -> Object:
        """Raises AlreadyExists also where an earlier try arrived and its answer was lost."""
        path = self._path(body["kind"], body["metadata"]["namespace"])
        return await self._call(Request("POST", path, body, {"fieldManager": self.manager}))

    async def apply(self, body: Object) -> Object:
        """Server-side apply, by force: the fields in `body` become ours, fields of other managers stay."""
        parameters = {"fieldManager": self.manager, "force": "true"}
        return await self._call(Request("PATCH", self._path_of(body), body, parameters, APPLY))

    async def replace(self, body: Object) -> Object:
        """Writes the whole object. Raises Conflict where it is not the version in `body` any more."""
        return await self._call(Request("PUT", self._path_of(body), body, {"fieldManager": self.manager}))

    async def annotate(
        self, kind: str, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Object:
        """Adds annotations to the object with this uid. Raises Conflict where the name has another uid."""
        change = {"uid": uid, "annotations": dict(annotations)}
        return await self._patch_metadata(kind, namespace, name, change, MERGE)

    async def release(self, kind: str, namespace: str, name: str, uid: str, finalizer: str) -> Object:
        """Removes one finalizer from the object with this uid. Raises Conflict where the name has another uid."""
        change = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}
        return await self._patch_metadata(kind, namespace, name, change, STRATEGIC)

    async def _patch_metadata(
        self, kind: str, namespace: str, name: str, change: Object, content_type: str
    ) -> Object:
        path, parameters = self._path(kind, namespace, name), {"fieldManager": self.manager}
        try:
            return await self._call(Request("PATCH", path, {"metadata": change}, parameters, content_type))
        except Refused as error:
            if "metadata.uid" in str(error):  # the API server calls a patch with another uid invalid
                raise Conflict(error.status, error.reason, str(error)) from error
            raise

    async def write_status(self, body: Object, status: Object) -> Object:
        """Replaces the whole status. A PUT costs the API server two thirds of a server-side apply.

        Raises:
            Conflict: the object is not the version in `body` any more.
            Refused: the served definition lacks a field of the status.
        """
        metadata = body["metadata"]
        kept = {key: metadata[key] for key in ("name", "namespace", "resourceVersion", "uid")}
        change = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": kept, "status": status}
        parameters = {"fieldManager": self.manager, "fieldValidation": "Strict"}
        return await self._call(Request("PUT", self._path_of(body) + "/status", change, parameters))

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", grace_seconds: int | None = None
    ) -> Object:
        """Deletes the object, only that with this uid where one is given; dependants go in the background."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._call(Request("DELETE", self._path(kind, namespace, name), options))

    def _path(self, kind: str, namespace: str, name: str = "") -> str:
        return self.resources[kind].path(namespace, name)

    def _path_of(self, body: Object) -> str:
        return self._path(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])


async def wait_for_api(ask: Callable[[], Awaitable[T]], seconds: float = START_SECONDS) -> T:
    """Retries `ask` while it raises Unreachable; raises the last one after so many seconds."""
    loop = asyncio.get_running_loop()
    deadline, told = loop.time() + seconds, ""
    while True:
        try:
            return await ask()
        except Unreachable as error:
            if loop.time() >= deadline:
                raise
            if str(error) != told:
                told = str(error)
                tell(logging.WARNING, "waits for the API server", error=told)
        await asyncio.sleep(random.uniform(0.5, 1.0))
