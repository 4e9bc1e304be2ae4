"""Informer cache: the newest known state of each object, fed by watches, by lists and by the operator's own writes.

Events and answers may arrive in any order. An older state never replaces a newer one, and a deleted object never comes
back: the uids of deleted objects are kept as tombstones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atoll_operator.kube.keys import (
    Key,
    Object,
    ObjectVersion,
    controller_uid,
    key_of,
    object_version,
    version_of,
)

TOMBSTONES = 10_000
"""Uids of deleted objects that are remembered; no event is so late that it refers to an older one."""
Project = Callable[[Object, Any], Any]
"""Takes a body and the value of the object's previous state, or None; returns what is kept of the body."""
Index = Callable[[str, Object], Hashable | None]
"""Takes kind and body; returns the value under which the object is found, or None."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The known state of one object."""

    key: Key
    uid: str
    resource_version: int
    version: ObjectVersion
    controller: str
    """Uid of the controller; empty where there is none."""
    value: Any
    """The projection of the body."""
    groups: tuple[Hashable | None, ...]
    """The value of each index, in the order of the cache's indices."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one event or list changed: `old` is None for a new object, `new` for a deleted one."""

    key: Key
    old: Entry | None
    new: Entry | None


def without_managed_fields(body: Object, _: Any = None) -> Object:
    """Projects to the body without `managedFields`, which is more than half of it. The original is not changed."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": metadata}


class Cache:
    """Not thread-safe: all calls come from one event loop.

    Args:
        project: by kind, what is kept of a body; by default nothing.
        indices: by name, how objects are found besides by their key.
    """

    def __init__(self, project: Mapping[str, Project], indices: Mapping[str, Index]) -> None:
        self._project = project
        self._indices = tuple(indices.values())
        self._position = {name: position for position, name in enumerate(indices)}
        self._entries: dict[str, dict[Key, Entry]] = {}
        """By kind."""
        self._groups: tuple[dict[Hashable, set[Key]], ...] = tuple({} for _ in indices)
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def put(self, kind: str, body: Object) -> Change | None:
        """Takes the state of an object; returns None where it is not newer than what is known."""
        key, metadata = key_of(kind, body), body["metadata"]
        uid, version = metadata["uid"], version_of(metadata)
        old = self.get(key)
        if uid in self._deleted or (old is not None and version <= old.resource_version):
            return None
        same = old is not None and old.uid == uid
        new = Entry(
            key=key,
            uid=uid,
            resource_version=version,
            version=object_version(kind, body),
            controller=controller_uid(body),
            value=self._project[kind](body, old.value if old and same else None)
            if kind in self._project
            else None,
            groups=tuple(index(kind, body) for index in self._indices),
        )
        if old is not None:
            self._remove(old)
            if not same:  # a newer object of the same name exists, so the old one was deleted
                self._bury(old.uid)
        self._entries.setdefault(kind, {})[key] = new
        for group, value in zip(self._groups, new.groups, strict=True):
            if value is not None:
                group.setdefault(value, set()).add(key)
        return Change(key, old, new)

    def delete(self, kind: str, body: Object) -> Change | None:
        """The object with this uid was deleted; returns None where it was not known."""
        uid = body["metadata"]["uid"]
        self._bury(uid)
        old = self.get(key_of(kind, body))
        return self._drop(old) if old is not None and old.uid == uid else None

    def replace(self, candidates: Iterable[Key], present: Collection[Key], version: int) -> list[Change]:
        """Deletes the candidates that a fresh list at this resource version did not have."""
        lost = [
            entry
            for key in list(candidates)
            if key not in present
            and (entry := self.get(key)) is not None
            and entry.resource_version <= version
        ]
        for entry in lost:
            self._bury(entry.uid)
        return [self._drop(entry) for entry in lost]

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key.kind, {}).get(key)

    def keys(self, kind: str, namespace: str = "") -> list[Key]:
        """All keys of a kind, or those of one namespace."""
        return [key for key in self._entries.get(kind, ()) if namespace in ("", key.namespace)]

    def values(self, kind: str) -> Iterator[Any]:
        return (entry.value for entry in self._entries.get(kind, {}).values())

    def by(self, index: str, value: Hashable, kind: str) -> list[Entry]:
        """The objects of a kind under one value of an index, in the order of their names."""
        keys = self._groups[self._position[index]].get(value, ())
        return [self._entries[kind][key] for key in sorted(keys) if key.kind == kind]

    def group(self, index: str, entry: Entry) -> Any:
        """The value of an index for this object."""
        return entry.groups[self._position[index]]

    def version(self, key: Key) -> ObjectVersion | None:
        """None where there is no such object."""
        entry = self.get(key)
        return None if entry is None else entry.version

    def controller(self, key: Key) -> str | None:
        """Uid of the object's controller, empty where it has none; None where there is no such object."""
        entry = self.get(key)
        return None if entry is None else entry.controller

    def _drop(self, entry: Entry) -> Change:
        self._remove(entry)
        return Change(entry.key, entry, None)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key.kind][entry.key]
        for group, value in zip(self._groups, entry.groups, strict=True):
            if value is not None and (keys := group.get(value)):
                keys.discard(entry.key)
                if not keys:
                    del group[value]

    def _bury(self, uid: str) -> None:
        self._deleted[uid] = None
        if len(self._deleted) > TOMBSTONES:
            self._deleted.popitem(last=False)
