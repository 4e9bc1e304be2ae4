"""What is there of the small objects that runs and units own, and which version: of these no body is kept.

So what somebody deletes or changes is seen at once. The watches ask for metadata alone: no Secret's contents come.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from atoll_operator.api.group import Object, controller_uid
from atoll_operator.kube.keys import Key, Kind, Sight, key_of, parent_key, sight_of
from atoll_operator.kube.tombstones import Gone
from atoll_operator.kube.urgency import News

KINDS: frozenset[Kind] = frozenset({"Service", "ConfigMap", "Secret"})


@dataclass(frozen=True, slots=True)
class _Belonging:
    sight: Sight
    controller: str
    parent: Key | None


class Belongings:
    """By key. What is older than what is known is ignored, and what was seen to go does not come back."""

    def __init__(self) -> None:
        self._known: dict[Key, _Belonging] = {}
        self._gone = Gone()

    def put(self, kind: Kind, body: Object) -> News:
        """Takes the state of an object. That one is there is no news: whoever wants it has made it."""
        key, sight = key_of(kind, body), sight_of(kind, body)
        known = self._known.get(key)
        if sight[0] in self._gone or (known is not None and sight[1] <= known.sight[1]):
            return News.NONE
        self._known[key] = _Belonging(sight, controller_uid(body), parent_key(kind, body))
        return News.NONE if known is None else News.CALM

    def drop(self, kind: Kind, body: Object) -> News:
        """The object is gone for good."""
        key, uid = key_of(kind, body), body["metadata"]["uid"]
        self._gone.add(uid)
        known = self._known.get(key)
        if known is None or known.sight[0] != uid:
            return News.NONE
        del self._known[key]
        return News.CALM

    def keep(self, kind: Kind, namespace: str, names: Collection[tuple[str, str]], version: int) -> set[Key]:
        """A list of a whole namespace, or of all where that is empty, had only these objects at that version.

        Returns:
            Who lost one.
        """
        lost = [
            key
            for key, known in self._known.items()
            if key.kind == kind
            and namespace in ("", key.namespace)
            and key[1:] not in names
            and known.sight[1] <= version
        ]
        parents = {self._known[key].parent for key in lost}
        for key in lost:
            self._gone.add(self._known.pop(key).sight[0])
        return {parent for parent in parents if parent is not None}

    def sight(self, key: Key) -> Sight | None:
        """None where there is no such object."""
        known = self._known.get(key)
        return None if known is None else known.sight

    def controller(self, key: Key) -> str | None:
        """Uid of the object's controller, empty where it has none; None where there is no such object."""
        known = self._known.get(key)
        return None if known is None else known.controller
