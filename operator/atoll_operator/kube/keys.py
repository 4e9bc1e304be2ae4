"""Names of objects, and who has to look when one of them changes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from atoll_operator.api.group import EVALUATOR, LABEL_COMPONENT, LABEL_RUN, LABEL_UNIT, SYNCER, Object

Kind = Literal["TrainingRun", "LearnerUnit", "Pod", "StatefulSet", "Service", "ConfigMap", "Secret"]
Sight = tuple[str, int]
"""Uid of an object, and a number that goes up when somebody changes what it is meant to be."""


class Key(NamedTuple):
    """One object."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(kind: Kind, body: Object) -> Key:
    return Key(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def parent_key(kind: Kind, body: Object) -> Key | None:
    """The TrainingRun or LearnerUnit that has to look when this object changes."""
    namespace = body["metadata"]["namespace"]
    labels = body["metadata"].get("labels", {})
    if kind == "TrainingRun":
        return None
    if kind == "LearnerUnit":
        return Key("TrainingRun", namespace, body["spec"]["run"])
    if kind == "StatefulSet" or (kind == "Pod" and labels.get(LABEL_COMPONENT) in (SYNCER, EVALUATOR)):
        return Key("TrainingRun", namespace, labels.get(LABEL_RUN, ""))
    if kind == "Pod":
        return Key("LearnerUnit", namespace, labels.get(LABEL_UNIT, ""))
    if LABEL_UNIT in labels:
        return Key("LearnerUnit", namespace, labels[LABEL_UNIT])
    return Key("TrainingRun", namespace, labels[LABEL_RUN]) if LABEL_RUN in labels else None


def sight_of(kind: Kind, body: Object) -> Sight:
    """Of a StatefulSet its generation counts, for its status changes all the time; of others every write."""
    metadata = body["metadata"]
    number = metadata["generation"] if kind == "StatefulSet" else version_of(metadata)
    return metadata["uid"], number


def version_of(metadata: Object) -> int:
    """Resource versions of one kind are numbers that grow (KEP-5504, Kubernetes 1.35); 0 where there is none."""
    text = metadata.get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0
