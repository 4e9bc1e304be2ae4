"""Names, owners and versions of Kubernetes objects."""

from __future__ import annotations

from typing import Any, NamedTuple

Object = dict[str, Any]
"""A Kubernetes object as JSON."""
ObjectVersion = tuple[str, int]
"""Uid of an object, and a number that grows when somebody changes what the object is meant to be."""


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


def controller_uid(body: Object) -> str:
    """The uid of the object's controller, or an empty string."""
    for reference in body["metadata"].get("ownerReferences", []):
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def version_of(metadata: Object) -> int:
    """The resource version, a number that grows over all objects of a kind (KEP-5504); 0 where there is none."""
    text = metadata.get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0


def object_version(kind: str, body: Object) -> ObjectVersion:
    """Uses the generation of a StatefulSet, because its status changes all the time, else the resource version."""
    metadata = body["metadata"]
    number = metadata["generation"] if kind == "StatefulSet" else version_of(metadata)
    return metadata["uid"], number
