"""Applies owned objects by server-side apply: once, and again when they changed or were deleted.

An object that is not ours is neither changed nor deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from atoll_operator.kube.cache import Cache
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry
from atoll_operator.kube.keys import Key, Object, ObjectVersion, controller_uid, key_of, object_version


@dataclass(frozen=True, slots=True)
class _Applied:
    """What was applied last, and the version that it made."""

    digest: str
    version: ObjectVersion


class Applier:
    """Remembers what it applied, by the owner's uid.

    Args:
        labels: on all objects of this operator; with them an object of an earlier owner is recognised.
        inherit: whether an object of an earlier owner of the same name is taken over at once.
    """

    def __init__(
        self, client: ApiClient, cache: Cache, labels: Mapping[str, str], inherit: bool = False
    ) -> None:
        self._client = client
        self._cache = cache
        self._labels = labels
        self._inherit = inherit
        self._applied: dict[str, dict[Key, _Applied]] = {}
        """By the owner's uid."""

    async def apply(self, uid: str, body: Object) -> None:
        """Does nothing where the same body was applied and the object is still the version that this made.

        Raises:
            Retry: the object of an earlier owner of this name is still there.
            Refused: an object of this name exists that is not ours.
        """
        kind, key = body["kind"], key_of(body["kind"], body)
        digest = hashlib.sha256(msgspec.json.encode(body)).hexdigest()
        version, applied = self._cache.version(key), self._applied.get(uid, {}).get(key)
        if version is not None and applied == _Applied(digest, version):
            return
        if applied is None or version is None or applied.version[0] != version[0]:
            await self._check(body)
        answer = await self._client.apply(body)
        self._applied.setdefault(uid, {})[key] = _Applied(digest, object_version(kind, answer))
        self._cache.put(kind, answer)

    async def _check(self, body: Object) -> None:
        """Sends no request for a Service, because the cache has those of others too."""
        kind, metadata = body["kind"], body["metadata"]
        owned = metadata["ownerReferences"][0]
        if kind == "Service" and self._cache.controller(key_of(kind, body)) in (None, owned["uid"]):
            return
        with contextlib.suppress(NotFound):
            found = await self._client.get(kind, metadata["namespace"], metadata["name"])
            check_owner(found, kind, owned, self._labels, self._inherit)

    async def remove(self, uid: str, namespace: str, reference: Any) -> None:
        """Deletes the object (`kind`, `name`) if the cache knows it and its controller has this uid."""
        key = Key(reference.kind, namespace, reference.name)
        version = self._cache.version(key)
        if version is None or self._cache.controller(key) != uid:
            return
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(key.kind, namespace, key.name, version[0])
        self._applied.get(uid, {}).pop(key, None)
        self._cache.delete(
            key.kind, {"metadata": {"namespace": namespace, "name": key.name, "uid": version[0]}}
        )

    def forget(self, uid: str) -> None:
        """The owner was deleted, or all its objects are to be applied again."""
        self._applied.pop(uid, None)


def check_owner(
    found: Object, kind: str, owned: Object, labels: Mapping[str, str], inherit: bool = False
) -> None:
    """Checks that the object belongs to the owner in the reference `owned`.

    Args:
        labels: on all objects of this operator.
        inherit: whether it may also belong to an earlier owner of the same name.

    Raises:
        Retry: it belongs to an earlier owner; the garbage collector deletes it.
        Refused: it is not ours.
    """
    if controller_uid(found) == owned["uid"]:
        return
    metadata = found["metadata"]
    name = metadata["name"]
    if controller_uid(found) and labels.items() <= metadata.get("labels", {}).items():
        if inherit:
            return
        raise Retry(2.0, f"{kind} {name!r} belongs to an earlier object of the same name")
    problem = f"{kind} {name!r} is not the {owned['kind']}'s: delete it, or use another name for the {owned['kind']}"
    raise Refused(409, "AlreadyExists", problem)
