"""Asks the API server whose a bearer token is, and whether that account may read a path that is no resource."""

from __future__ import annotations

import asyncio
import hashlib
import time

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import ApiError, Unreachable

KEPT_SECONDS = 60.0
"""For which a token is not asked for again; a right that was withdrawn lasts as long."""
KEPT = 64
"""Tokens that are kept at most. Refused ones are not, so whoever makes up tokens drives none out."""
ASK_SECONDS = 3.0
"""For which a caller waits. While the API server does not answer, a token that is kept counts on."""
AT_ONCE = 8
"""Callers that may wait for the API server at a time; a further one is told to come again."""


class PathAccess:
    """Decides on callers of one path; `client` needs the rights of `system:auth-delegator`."""

    def __init__(self, client: ApiClient, path: str) -> None:
        self._client, self._path = client, path
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._until: dict[bytes, float] = {}
        """By digest of a token that may read the path, the monotonic time until which that counts."""

    async def status(self, authorization: str) -> int:
        """The HTTP status for a caller with this header: 200; 401 without a valid token; 403 without the right; 503."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not (token and token.isascii()):
            return 401
        digest, now = hashlib.sha256(token.encode()).digest(), time.monotonic()
        if self._until.get(digest, now) > now:
            return 200
        if self._slots.locked():
            return 503
        try:
            async with self._slots, asyncio.timeout(ASK_SECONDS):
                status = await self._ask(token)
        except (ApiError, Unreachable, TimeoutError):
            return 200 if digest in self._until else 503
        if status == 200:
            self._until = dict([*self._until.items()][1 - KEPT :]) | {digest: now + KEPT_SECONDS}
        return status

    async def _ask(self, token: str) -> int:
        review = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        if not review.get("authenticated"):
            return 401
        user = review["user"]
        who = {key: user[key] for key in ("uid", "groups", "extra") if key in user}
        spec = {"user": user["username"], **who, "nonResourceAttributes": {"path": self._path, "verb": "get"}}
        review = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        return 200 if review["allowed"] else 403

    async def _review(self, group: str, kind: str, spec: Object) -> Object:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"namespace": ""}, "spec": spec}
        return dict((await self._client.create(body))["status"])
