"""What is known of the cluster: an informer cache of the watched kinds, and the queries of the reconcilers."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from pydantic import ValidationError

from atoll_operator.api.group import LABEL_RUN, LABEL_UNIT, Object
from atoll_operator.api.learnerunit import LearnerUnit, LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.api.stored import M, known
from atoll_operator.api.trainingrun import OptionalSpec, TrainingRun, TrainingRunSpec, TrainingRunStatus
from atoll_operator.kube.cache import Cache, Entry, Key, controller_uid, key_of, without_managed_fields
from atoll_operator.kube.errors import Unreadable
from atoll_operator.plan.conditions import document
from atoll_operator.plan.limits import Claim, Limits, Room, rooms, run_claim, unit_claim
from atoll_operator.plan.nodes import Kind as NodeKind
from atoll_operator.plan.nodes import NodeView, sound_chips, view_node
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.run.observed import UnitFacts
from atoll_runtime.contract import problems

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


class Body(dict[str, Any]):
    """The body of a run or a unit. Its model may raise Unreadable."""

    unknown: Mapping[str, Any] = MappingProxyType({})
    """Its fields and values that this version does not know, by path."""

    @cached_property
    def unit(self) -> LearnerUnit:
        return self._read(LearnerUnit)

    @cached_property
    def controller(self) -> str:
        return controller_uid(self)

    @cached_property
    def facts(self) -> UnitFacts:
        """The unit as the run sees it that controls it, or any run if a user made it."""
        try:
            unit = self.unit
        except Unreadable:
            status, spec = self.status_of(LearnerUnitStatus), None
        else:
            status, spec = unit.status, unit.spec
        metadata = self["metadata"]
        stays = "deletionTimestamp" not in metadata
        return UnitFacts(
            name=metadata["name"],
            run=self["spec"]["run"],
            status=status,
            spec=spec,
            uid=metadata["uid"],
            owned=bool(self.controller) and stays,
            by_hand=not self.controller and stays,
            generation=metadata["generation"],
        )

    @cached_property
    def run(self) -> TrainingRun:
        return self._read(TrainingRun)

    @cached_property
    def for_units(self) -> TrainingRun:
        """The run. If it is unreadable, only the parts of it that its units need."""
        with suppress(Unreadable):
            return self.run
        spec = TrainingRunSpec.model_construct(**dict(self._known(OptionalSpec, self["spec"])[0]))
        return TrainingRun.model_construct(spec=spec, status=self.status_of(TrainingRunStatus))

    def status_of(self, model: type[M]) -> M:
        return self._known(model, self.get("status", {}))[0]

    def _read(self, model: type[M]) -> M:
        parts = {"spec": self["spec"], "status": self.get("status", {})}
        found, self.unknown = self._known(model, parts)
        return found

    @staticmethod
    def _known(model: type[M], document: Object) -> tuple[M, dict[str, Any]]:
        try:
            return known(model, document)
        except ValidationError as error:
            raise Unreadable(problems(error)) from error


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
        self._templates: WeakValueDictionary[bytes, PodTemplate] = WeakValueDictionary()
        """By the digests of what was read as each. All units of a run have one, and it may have hundreds of KiB."""
        self._deleted_nodes: OrderedDict[str, NodeView] = OrderedDict()
        self._chips: Mapping[NodeKind, Mapping[str, int]] | None = None
        self._rooms: dict[str, Mapping[Claim, Room]] = {}

    def _body(self, kind: str, body: Object, _: Any) -> Body:
        kept = Body(without_managed_fields(body))
        if template := body["spec"].get("podTemplate"):
            kept["spec"] = body["spec"] | {"podTemplate": self._pod_template(template)}
        with suppress(Unreadable):  # made now, because a pass over a run uses those of all its units
            _ = kept.facts if kind == "LearnerUnit" else kept.run
        return kept

    def _pod_template(self, content: Object) -> PodTemplate | Object:
        """The same object for equal templates, so that a run is compared with thousands of units by identity. The
        content itself if it has what this version does not know or cannot read, which each body reports."""
        digest = _digest(content)
        if (found := self._templates.get(digest)) is None:
            try:
                model = PodTemplate.model_validate(content)
            except ValidationError:
                return content
            # A run's may leave out what a unit's says.
            found = self._templates[digest] = self._templates.setdefault(_digest(document(model)), model)
        return found

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
        claims, begun = list[Claim](), set[str]()
        for key in (*self.keys("TrainingRun", namespace), *self.keys("LearnerUnit", namespace)):
            if (body := self.live(key)) is None or (key.kind == "LearnerUnit" and controller_uid(body)):
                continue
            with suppress(Unreadable):
                if key.kind == "LearnerUnit":
                    claims += [unit_claim(body["metadata"], body.unit)] if body.unit.spec.run in begun else []
                elif (claim := run_claim(body["metadata"], body.run)) is not None:
                    claims.append(claim)
                    begun |= {key.name} if claim.has is not None else set()
        return claims

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


def _digest(content: Object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).digest()
