"""The objects of a run that are not units: each is applied once, and again when it changed or is looked at anew."""

from __future__ import annotations

import contextlib
import hashlib

import msgspec

from atoll_operator.api.group import Object
from atoll_operator.cluster import Cluster
from atoll_operator.errors import NotFound
from atoll_operator.keys import key_of
from atoll_operator.ownership import check_owner
from atoll_operator.plan.run import Reference
from atoll_operator.store import Store


class Applier:
    """By uid of the run."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._applied: dict[tuple[str, str, str], str] = {}
        """Uid of the run, kind and name to the digest of what was applied last; empty after a removal."""

    async def apply(self, uid: str, body: Object) -> None:
        """Unless the very same was applied and, where we watch the kind, is still there.

        Raises:
            Retry: an object of an earlier run of this name has not gone yet.
            Refused: somebody else has one of this name.
        """
        name = (uid, body["kind"], body["metadata"]["name"])
        digest = hashlib.sha256(msgspec.json.encode(body)).hexdigest()
        watched = body["kind"] == "StatefulSet"
        if self._applied.get(name) == digest and not (
            watched and self._store.get(key_of("StatefulSet", body)) is None
        ):
            return
        if name not in self._applied:
            await self._check(body)
        answer = await self._cluster.apply(body)
        if watched:
            self._store.put("StatefulSet", answer)
        self._applied[name] = digest

    async def _check(self, body: Object) -> None:
        kind, metadata = body["kind"], body["metadata"]
        with contextlib.suppress(NotFound):
            found = await self._cluster.get(kind, metadata["namespace"], metadata["name"])
            check_owner(found, kind, metadata["ownerReferences"][0])

    async def remove(self, uid: str, namespace: str, reference: Reference) -> None:
        """Once."""
        name = (uid, reference.kind, reference.name)
        if self._applied.get(name) == "":
            return
        with contextlib.suppress(NotFound):
            await self._cluster.delete(reference.kind, namespace, reference.name)
        self._applied[name] = ""

    def review(self) -> None:
        """Has every object applied again."""
        self._applied.clear()

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self._applied = {name: digest for name, digest in self._applied.items() if name[0] != uid}
