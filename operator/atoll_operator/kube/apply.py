"""Applies owned objects by server-side apply: once, and again after they were changed or deleted. An object that is not
ours is neither changed nor deleted. A new object of a kind in `fixed` is created by a POST, which costs the API server
30 % less. A field that a POST has set stays when a later body lacks it, so bodies of these kinds never change. They
have no state, so an object of an earlier owner of the same name is taken over without waiting for its deletion."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection

import msgspec

from atoll_operator.kube.cache import Cache, Key, Object, controller_of, key_of
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import AlreadyExists, Conflict, NotFound, Refused, Retry


class Applier:
    """The cache remembers what was applied, until the object has another version."""

    def __init__(self, client: ApiClient, cache: Cache, fixed: Collection[str]) -> None:
        self._client, self._cache, self._fixed = client, cache, fixed

    async def apply(self, body: Object) -> None:
        """Does nothing if the same body was applied and the object still has the version from then. Raises Retry and
        Refused like `check_owner`."""
        kind, key, owner = body["kind"], key_of(body["kind"], body), body["metadata"]["ownerReferences"][0]
        digest = hashlib.sha256(msgspec.json.encode(body)).hexdigest()
        entry = self._cache.get(key)
        if entry is not None and entry.mark == digest:
            return
        if entry is None and kind in self._fixed:
            with contextlib.suppress(AlreadyExists):
                self._cache.mark(kind, await self._client.create(body), digest)
                return
        if entry is None or entry.controller != owner["uid"]:
            with contextlib.suppress(NotFound):
                found = await self._client.get(kind, key.namespace, key.name)
                check_owner(found, owner, inherit=kind in self._fixed)
                if kind in self._fixed:  # an apply would leave the earlier controller beside ours
                    await self._client.patch_metadata(*key, found["metadata"]["uid"], ownerReferences=[owner])
        self._cache.mark(kind, await self._client.apply(body), digest)

    async def remove(self, owner: str, key: Key) -> None:
        """Deletes the object if the cache knows it and its controller has the uid `owner`."""
        entry = self._cache.get(key)
        if entry is None or entry.controller != owner:
            return
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(key.kind, key.namespace, key.name, entry.uid)
        self._cache.delete(key, entry.uid)


async def found_or_created(client: ApiClient, body: Object) -> Object:
    """The object of this name; it is created if there is none. Raises like `create` and `check_owner`."""
    with contextlib.suppress(AlreadyExists):
        return await client.create(body)
    found = await client.get(*key_of(body["kind"], body))
    check_owner(found, body["metadata"]["ownerReferences"][0])
    return found


def check_owner(found: Object, owner: Object, inherit: bool = False) -> None:
    """Checks that the object belongs to the owner in this reference. Raises Retry for an earlier owner of that kind and
    name, because the garbage collector will delete it, unless `inherit` is set. Raises Refused for others."""
    controller = controller_of(found)
    if controller.get("uid") == owner["uid"]:
        return
    name, ours = f"{found['kind']} {found['metadata']['name']!r}", owner["kind"]
    if any(controller.get(key) != owner[key] for key in ("kind", "name")):
        raise Refused(f"{name} is not the {ours}'s: delete it, or use another name for the {ours}")
    if not inherit:
        raise Retry(2.0, f"{name} belongs to an earlier object of the same name")
