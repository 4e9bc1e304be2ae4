"""Informer cache: the newest known state of each object, fed by watches, by lists and by the operator's own writes.
Events and answers may arrive in any order. An older state never replaces a newer one, and a deleted object never comes
back: the uids of deleted objects are kept as tombstones, with the version of the deletion. An object that no longer
matches a watch's selector counts as deleted until it has a newer version."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

TOMBSTONES = 10_000
"""Uids of deleted objects that are remembered; no event comes so late that it refers to an older one."""
Object = dict[str, Any]
"""A Kubernetes object as JSON."""
Project = Callable[[Object, Any], Any]
"""Takes a body and the value of the object's previous state, or None; returns what is kept of the body."""
Index = Callable[[str, Object], Hashable | None]
"""Takes kind and body; returns the value under which the object is found, or None."""


class Key(NamedTuple):
    """One object; the namespace of a cluster-scoped object is empty."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(kind: str, body: Object) -> Key:
    metadata = body["metadata"]
    return Key(kind, metadata.get("namespace", ""), metadata["name"])


def brief(body: Object) -> Object:
    """The fields that identify an object and its state."""
    names = ("name", "namespace", "uid", "resourceVersion")
    return {"metadata": {name: body["metadata"][name] for name in names if name in body["metadata"]}}


def controller_of(body: Object) -> Object:
    """The reference to the object's controller; empty if it has none."""
    references = body["metadata"].get("ownerReferences", ())
    return next((each for each in references if each.get("controller")), {})


def controller_uid(body: Object) -> str:
    """The uid of the object's controller, or an empty string."""
    return str(controller_of(body).get("uid", ""))


def version_of(metadata: Object) -> int:
    """The resource version, a number that grows over all objects of a kind (KEP-5504); 0 if there is none."""
    text = metadata.get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Entry:
    key: Key
    uid: str
    resource_version: int
    controller: str
    """Uid of the controller; empty if there is none."""
    value: Any
    """What the projection keeps of the body."""
    groups: Mapping[str, Any]
    mark: Hashable = ""
    """What the operator noted about this version; empty once the object has another version."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one event or list changed: `old` is None for a new object, `new` for a deleted one."""

    key: Key
    old: Entry | None
    new: Entry | None


def without_managed_fields(body: Object) -> Object:
    """Projects to the body without `managedFields`, which is more than half of it. The original is not changed."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": metadata}


class Cache:
    """Not thread-safe: all calls but `version` come from one event loop. `project` says for each kind what is kept of a
    body (by default nothing). `indices` has ways to find objects other than by key, each under a name."""

    def __init__(self, project: Mapping[str, Project], indices: Mapping[str, Index]) -> None:
        self._project, self._indices = project, indices
        self._entries: dict[str, dict[Key, Entry]] = {}
        self._groups: dict[tuple[str, Hashable], set[Key]] = {}
        self._deleted: OrderedDict[str, float] = OrderedDict()
        """By uid, the newest version that counts as deleted."""

    def put(self, kind: str, body: Object) -> Change | None:
        """Takes the state of an object; returns None if it is not newer than what is known."""
        key, metadata = key_of(kind, body), body["metadata"]
        uid, version, old = metadata["uid"], version_of(metadata), self.get(key)
        if version <= max(self._deleted.get(uid, -1), -1 if old is None else old.resource_version):
            return None
        before = old.value if old is not None and old.uid == uid else None
        project: Project = self._project.get(kind, lambda body, before: None)
        values = ((name, index(kind, body)) for name, index in self._indices.items())
        groups: dict[str, Any] = {name: value for name, value in values if value is not None}
        new = Entry(key, uid, version, controller_uid(body), project(body, before), groups)
        if old is not None:
            self._remove(old)
            if old.uid != uid:  # a newer object of the same name exists, so the old one was deleted
                self._bury(old.uid, math.inf)
        self._entries.setdefault(kind, {})[key] = new
        for group in groups.items():
            self._groups.setdefault(group, set()).add(key)
        self._changed(new)
        return Change(key, old, new)

    def mark(self, kind: str, body: Object, mark: Hashable) -> None:
        """Takes an answer of the API server, and attaches `mark` to this version of the object."""
        self.put(kind, body)
        entry = self.get(key_of(kind, body))
        if entry is not None and entry.resource_version == version_of(body["metadata"]):
            self._entries[kind][entry.key] = replace(entry, mark=mark)

    def delete(self, key: Key, uid: str, version: float = math.inf) -> Change | None:
        """The object with this uid was deleted, at this version if that is known; returns None if it was not known, or
        is known to be newer."""
        self._bury(uid, version)
        old = self.get(key)
        if old is None or old.uid != uid or old.resource_version > version:
            return None
        return self._drop(old, version)

    def prune(self, candidates: Iterable[Key], present: Collection[Key], version: int) -> list[Change]:
        """Deletes the candidates that a fresh list at this resource version did not have."""
        known = (self.get(key) for key in list(candidates) if key not in present)
        return [self._drop(entry, version) for entry in known if entry and entry.resource_version <= version]

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key.kind, {}).get(key)

    def version(self, key: Key) -> int:
        """The newest resource version that is known of the object; 0 for none."""
        entry = self.get(key)
        return 0 if entry is None else entry.resource_version

    def has(self, kind: str) -> bool:
        return bool(self._entries.get(kind))

    def keys(self, kind: str, namespace: str = "") -> list[Key]:
        return [key for key in self._entries.get(kind, ()) if namespace in ("", key.namespace)]

    def values(self, kind: str) -> Iterator[Any]:
        return (entry.value for entry in self._entries.get(kind, {}).values())

    def by(self, index: str, value: Hashable, kind: str) -> list[Entry]:
        """The objects of a kind under one value of an index, in the order of their names."""
        keys = self._groups.get((index, value), ())
        return [self._entries[kind][key] for key in sorted(key for key in keys if key.kind == kind)]

    def _changed(self, entry: Entry) -> None:
        """An entry has come or gone."""

    def _drop(self, entry: Entry, version: float) -> Change:
        self._bury(entry.uid, version)
        self._remove(entry)
        return Change(entry.key, entry, None)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key.kind][entry.key]
        for group in entry.groups.items():
            self._groups[group].discard(entry.key)
            if not self._groups[group]:
                del self._groups[group]
        self._changed(entry)

    def _bury(self, uid: str, version: float) -> None:
        self._deleted[uid] = max(version, self._deleted.get(uid, -1))
        if len(self._deleted) > TOMBSTONES:
            self._deleted.popitem(last=False)
