"""What is known of the cluster: an informer cache of the watched kinds, and the queries of the reconcilers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from atoll_operator.api.group import LABEL_RUN, LABEL_UNIT, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.kube.cache import Cache, Entry, Key, key_of, without_managed_fields
from atoll_operator.kube.errors import Unreadable
from atoll_operator.plan.limits import Claim, Limits, Room, rooms, unit_claim
from atoll_operator.plan.nodes import Kind as NodeKind
from atoll_operator.plan.nodes import NodeView, sound_chips, view_node
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.reconcilers.body import Body, Templates

KINDS = ("TrainingRun", "LearnerUnit")
"""Kinds that are reconciled."""
PARENT, NODE = "parent", "node"
"""Indices of the cache."""
DELETED_NODES = 10_000
"""Names of deleted nodes that are remembered; their pods are deleted long before that."""


def parent_key(kind: str, body: Object) -> Key | None:
    """The TrainingRun or LearnerUnit that is reconciled when this object changes."""
    metadata = body["metadata"]
    namespace, labels = metadata.get("namespace", ""), metadata.get("labels", {})
    if kind == "LearnerUnit":
        return Key("TrainingRun", namespace, body["spec"]["run"])
    if kind in ("TrainingRun", "Node"):
        return None
    if LABEL_UNIT in labels:
        return Key("LearnerUnit", namespace, labels[LABEL_UNIT])
    return Key("TrainingRun", namespace, labels[LABEL_RUN]) if LABEL_RUN in labels else None


class Inventory(Cache):
    """Keeps bodies of runs and units, views of pods and nodes, and only the versions of other objects."""

    def __init__(self) -> None:
        super().__init__(
            project={
                **{kind: partial(self._body, kind) for kind in KINDS},
                "Pod": lambda body, _: view(body),
                "Node": lambda body, known: view_node(body, known, time.time()),
            },
            indices={
                PARENT: parent_key,
                NODE: lambda kind, body: body.get("spec", {}).get("nodeName") if kind == "Pod" else None,
            },
        )
        self._templates = Templates()
        self._deleted_nodes: OrderedDict[str, NodeView] = OrderedDict()
        self._chips: Mapping[NodeKind, Mapping[str, int]] | None = None
        self._rooms: dict[str, Mapping[Claim, Room]] = {}

    def _body(self, kind: str, body: Object, _: Any) -> Body:
        kept = Body(without_managed_fields(body))
        if template := body["spec"].get("podTemplate"):
            kept.template = self._templates.read(template)
            kept["spec"] = body["spec"] | {"podTemplate": kept.template.content}
        with suppress(Unreadable):  # made now, because a pass over a run uses those of all its units
            _ = kept.facts if kind == "LearnerUnit" else kept.run
        return kept

    async def replace_pods(self, unit: Key, pages: AsyncIterable[tuple[list[Object], int]]) -> None:
        """Takes a fresh list of a unit's pods page by page, because all bodies of 2,304 take 100 MiB, and deletes the
        others."""
        fresh, newest = set[Key](), 0
        async for pods, version in pages:
            while pods:
                fresh.add(key_of("Pod", body := pods.pop()))
                self.put("Pod", body)
            newest = version
        self.prune((entry.key for entry in self.by(PARENT, unit, "Pod")), fresh, newest)

    def body(self, key: Key) -> Body | None:
        entry = self.get(key)
        return None if entry is None else entry.value

    def live(self, key: Key) -> Body | None:
        """The body, unless the object is being deleted."""
        body = self.body(key)
        return None if body is None or "deletionTimestamp" in body["metadata"] else body

    def unit_keys(self, run: Key) -> list[Key]:
        return [entry.key for entry in self.by(PARENT, run, "LearnerUnit")]

    def rooms(self, namespace: str, limits: Limits) -> Mapping[Claim, Room]:
        """What the limits leave for each claim of a namespace. Computed once after each change of a claim, because many
        runs may wait."""
        if (found := self._rooms.get(namespace)) is None:
            found = self._rooms[namespace] = rooms(self._claims(namespace), limits)
        return found

    def _changed(self, entry: Entry) -> None:
        kind, namespace, name = entry.key
        if kind == "TrainingRun" or (kind == "LearnerUnit" and not entry.controller):
            self._rooms.pop(namespace, None)
        if kind == "Node":
            self._chips = None
            self._deleted_nodes.pop(name, None)
            if self.get(entry.key) is None:
                self._deleted_nodes[name] = replace(entry.value, gone=True)
                if len(self._deleted_nodes) > DELETED_NODES:
                    self._deleted_nodes.popitem(last=False)

    def _claims(self, namespace: str) -> list[Claim]:
        """Claims of the runs of a namespace, and of the units made by hand for runs that have begun."""
        claims = [claim for body in self._live("TrainingRun", namespace) if (claim := body.claim)]
        begun = {claim.name for claim in claims if claim.has is not None}
        for body in self._live("LearnerUnit", namespace):
            if not body.controller and body["spec"]["run"] in begun:
                with suppress(Unreadable):
                    claims.append(unit_claim(body["metadata"], body.unit))
        return claims

    def _live(self, kind: str, namespace: str) -> Iterator[Body]:
        return (body for key in self.keys(kind, namespace) if (body := self.live(key)) is not None)

    def pods_of(self, unit: Key, uid: str, owned: bool = True) -> tuple[PodView, ...]:
        """The pods that the unit of this uid owns, or the others of its name."""
        return tuple(each.value for each in self.by(PARENT, unit, "Pod") if (each.controller == uid) is owned)

    def set_pods(self, run: Key, uid: str, stateful_set: str) -> tuple[PodView, ...]:
        """The pods of this StatefulSet, if it belongs to the run of this uid, not to an earlier one of its name."""
        owner = self.get(Key("StatefulSet", run.namespace, stateful_set))
        if owner is None or owner.controller != uid:
            return ()
        return tuple(entry.value for entry in self.by(PARENT, run, "Pod") if entry.controller == owner.uid)

    def nodes_of(self, pods: Iterable[PodView]) -> dict[str, NodeView]:
        """The nodes of these pods that were seen, including deleted ones."""
        entries = {pod.node: self.get(Key("Node", "", pod.node)) for pod in pods}
        gone = self._deleted_nodes
        nodes = {name: entry.value if entry else gone.get(name) for name, entry in entries.items()}
        return {name: node for name, node in nodes.items() if node is not None}

    def sound_chips(self, unit: LearnerUnitSpec) -> Mapping[str, int]:
        """By node pool of the unit's accelerator, topology and machine type, the chips of the nodes that stay."""
        if self._chips is None:
            self._chips = sound_chips(self.values("Node"))
        return self._chips.get((unit.accelerator, unit.topology, unit.machine_type or ""), {})

    @property
    def sees_nodes(self) -> bool:
        """Whether any node was seen. Without the right to watch nodes, none is."""
        return bool(self._deleted_nodes) or self.has("Node")
