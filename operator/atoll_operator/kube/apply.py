"""Objects that runs and units own: each is applied once, and again when it changed, is gone, or is looked at anew."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass

import msgspec

from atoll_operator.api.group import Object
from atoll_operator.kube.client import Cluster
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.keys import Key, Sight, key_of, sight_of
from atoll_operator.kube.ownership import check_owner
from atoll_operator.plan.run.plan import Reference
from atoll_operator.reconcilers.store import Store


@dataclass(frozen=True, slots=True)
class _Applied:
    """What was applied last, and what came of it."""

    digest: str
    sight: Sight


class Applier:
    """Applies what runs and units own, and remembers what it applied, by the owner's uid.

    Args:
        inherit: whether what an earlier owner of the same name made is taken over rather than waited for.
    """

    def __init__(self, cluster: Cluster, store: Store, inherit: bool = False) -> None:
        self._cluster = cluster
        self._store = store
        self._inherit = inherit
        self._applied: dict[str, dict[Key, _Applied]] = {}
        """By the owner's uid."""

    async def apply(self, uid: str, body: Object) -> None:
        """Unless the very same was applied and is there as it was left.

        Raises:
            Retry: an object of an earlier owner of this name has not gone yet.
            Refused: somebody else has one of this name.
        """
        kind, key = body["kind"], key_of(body["kind"], body)
        digest = hashlib.sha256(msgspec.json.encode(body)).hexdigest()
        sight, applied = self._store.sight(key), self._applied.get(uid, {}).get(key)
        if sight is not None and applied == _Applied(digest, sight):
            return
        if applied is None or sight is None or applied.sight[0] != sight[0]:
            await self._check(body)
        answer = await self._cluster.apply(body)
        self._applied.setdefault(uid, {})[key] = _Applied(digest, sight_of(kind, answer))
        self._store.put(kind, answer)

    async def _check(self, body: Object) -> None:
        """Asks only where an object of others may have the name: all Services are known."""
        kind, metadata = body["kind"], body["metadata"]
        owned = metadata["ownerReferences"][0]
        if kind == "Service" and self._store.controller(key_of(kind, body)) in (None, owned["uid"]):
            return
        with contextlib.suppress(NotFound):
            found = await self._cluster.get(kind, metadata["namespace"], metadata["name"])
            check_owner(found, kind, owned, self._inherit)

    async def remove(self, uid: str, namespace: str, reference: Reference) -> None:
        """Unless there is none, as far as is known, or it is somebody else's: a name alone says nothing."""
        key = Key(reference.kind, namespace, reference.name)
        sight = self._store.sight(key)
        if sight is None or self._store.controller(key) != uid:
            return
        with contextlib.suppress(NotFound, Conflict):
            await self._cluster.delete(key.kind, namespace, key.name, sight[0])
        self._applied.get(uid, {}).pop(key, None)
        self._store.drop(key.kind, {"metadata": {"namespace": namespace, "name": key.name, "uid": sight[0]}})

    def forget(self, uid: str) -> None:
        """The owner is gone, or is to have every object applied again."""
        self._applied.pop(uid, None)
