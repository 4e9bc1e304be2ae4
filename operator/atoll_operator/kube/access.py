"""Asks the API server to which account a bearer token belongs, and whether it may read a non-resource path."""

from __future__ import annotations

import asyncio
import hashlib
import time

from atoll_operator.kube.cache import Object
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import ApiError, Unreachable

KEPT_SECONDS = 60.0
"""How long an accepted token is kept and not checked again. A right that was withdrawn lasts as long."""
KEPT = 64
"""Largest number of kept tokens. Refused ones are not kept, so made-up tokens displace no valid ones."""
ASK_SECONDS = 3.0
"""How long a caller waits. While the API server does not answer, tokens that are kept stay valid."""
AT_ONCE = 8
"""Callers that may wait for the API server at a time. Further ones get status 503."""


class PathAccess:
    """Decides which callers may read one path; `client` needs the rights of `system:auth-delegator`."""

    def __init__(self, client: ApiClient, path: str) -> None:
        self._client, self._path = client, path
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._until: dict[bytes, float] = {}
        """For the digest of each token that may read the path, the monotonic time until which this counts."""

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
