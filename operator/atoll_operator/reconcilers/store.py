"""The last known state of every object that matters, fed by the watches and by our own writes.

Our own writes go in at once, so that a lagging watch never makes a second gang; what is older than what we know is
ignored, and what we saw go does not come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from atoll_operator.api.group import Object, controller_uid
from atoll_operator.api.learnerunit import LearnerUnit
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.kube.keys import Key, Kind, Sight, key_of, parent_key, sight_of, version_of
from atoll_operator.kube.tombstones import LIMIT, Gone
from atoll_operator.kube.urgency import News
from atoll_operator.plan.nodes import Kind as NodeKind
from atoll_operator.plan.nodes import NodeView, gone, sound_chips, view_node
from atoll_operator.plan.pods.names import evaluator, syncer
from atoll_operator.plan.pods.view import PodView
from atoll_operator.reconcilers import belongings
from atoll_operator.reconcilers.belongings import Belongings
from atoll_operator.reconcilers.pods import Pods

M = TypeVar("M")


class Store:
    """Bodies of runs, units and StatefulSets by key, units also by run; of all else no more than plans need."""

    def __init__(self) -> None:
        self._bodies: dict[Key, Object] = {}
        self._children: dict[Key, set[Key]] = {}
        self._gone = Gone()
        self._units: dict[Key, tuple[Object, LearnerUnit]] = {}
        self._specs: dict[Key, tuple[Object, TrainingRunSpec]] = {}
        self._pods = Pods(lives=self._bodies.__contains__)
        self._belongings = Belongings()
        self._nodes: dict[str, NodeView] = {}
        self._gone_nodes: OrderedDict[str, None] = OrderedDict()
        self._chips: dict[NodeKind, dict[str, int]] | None = None
        """None after a change of a node."""

    def put(self, kind: Kind, body: Object) -> News:
        """Takes the state of an object unless a newer one is known."""
        if kind == "Pod":
            return self._pods.put(body)
        if kind in belongings.KINDS:
            return self._belongings.put(kind, body)
        key, metadata = key_of(kind, body), body["metadata"]
        if metadata["uid"] in self._gone:
            return News.NONE
        known = self._bodies.get(key)
        if known is not None and not _newer(body, known):
            return News.NONE
        if known is not None and not _same(known, body):
            self.drop(kind, known)  # another object of the same name
        body.setdefault("kind", kind)
        metadata.pop("managedFields", None)  # more than half of a body, and nobody reads it
        self._bodies[key] = body
        parent = parent_key(kind, body)
        if parent is not None:
            self._children.setdefault(parent, set()).add(key)
        return News.URGENT

    def drop(self, kind: Kind, body: Object) -> News:
        """The object is gone for good."""
        if kind == "Pod":
            return self._pods.drop(body)
        if kind in belongings.KINDS:
            return self._belongings.drop(kind, body)
        key, uid = key_of(kind, body), body["metadata"]["uid"]
        known = self._bodies.get(key)
        self._gone.add(uid)
        if known is not None and _same(known, body):
            self._forget(key)
        return News.URGENT

    def keep(self, kind: Kind, namespace: str, names: Collection[tuple[str, str]], version: int) -> set[Key]:
        """A list of a whole namespace, or of all where that is empty, had only these objects at that version.

        Args:
            names: namespace and name of each.

        Returns:
            Who has to look because one of this kind is gone.
        """
        if kind == "Pod":
            return self._pods.keep(namespace, names, version)
        if kind in belongings.KINDS:
            return self._belongings.keep(kind, namespace, names, version)
        lost = [
            body
            for key, body in self._bodies.items()
            if key.kind == kind
            and namespace in ("", key.namespace)
            and key[1:] not in names
            and version_of(body["metadata"]) <= version
        ]
        for body in lost:
            self.drop(kind, body)
        return {
            key for body in lost for key in (key_of(kind, body), parent_key(kind, body)) if key is not None
        }

    def get(self, key: Key) -> Object | None:
        """Of a run, a unit or a StatefulSet."""
        return self._bodies.get(key)

    def live(self, key: Key) -> Object | None:
        """The body, unless somebody has begun to delete it."""
        body = self._bodies.get(key)
        return None if body is None or "deletionTimestamp" in body["metadata"] else body

    def sight(self, key: Key) -> Sight | None:
        """What is known of a StatefulSet, a Service, a ConfigMap or a Secret of ours; None where there is none."""
        if key.kind != "StatefulSet":
            return self._belongings.sight(key)
        body = self._bodies.get(key)
        return None if body is None else sight_of("StatefulSet", body)

    def controller(self, key: Key) -> str | None:
        """Uid of the controller of such an object, empty where it has none; None where there is no such object."""
        if key.kind != "StatefulSet":
            return self._belongings.controller(key)
        body = self._bodies.get(key)
        return None if body is None else controller_uid(body)

    def keys(self, *kinds: Kind) -> Iterator[Key]:
        return (key for key in list(self._bodies) if key.kind in kinds)

    def unit(self, body: Object) -> LearnerUnit:
        """The model of a unit's body, made once for each version.

        Raises:
            ValidationError: another version of the operator wrote it.
        """
        return _model(self._units, key_of("LearnerUnit", body), body, _unit)

    def run_spec(self, body: Object) -> TrainingRunSpec:
        """The model of a run's spec, made once for each version.

        Raises:
            ValidationError: this version of the operator cannot read it.
        """
        return _model(self._specs, key_of("TrainingRun", body), body, _run_spec)

    def unit_keys(self, run: Key) -> list[Key]:
        return [key for key in sorted(self._children.get(run, ())) if key.kind == "LearnerUnit"]

    def units_of(self, run: Key) -> list[Object]:
        return [self._bodies[key] for key in self.unit_keys(run)]

    def pods_of(self, unit: Key, uid: str) -> tuple[PodView, ...]:
        """The pods that the unit of this uid owns."""
        return tuple(pod.view for pod in self._pods.of(unit) if pod.owner == uid)

    def syncer_pods(self, run: Key) -> tuple[PodView, ...]:
        """Those of all shards."""
        return self._pods_named(run, syncer(run.name))

    def evaluator_pods(self, run: Key) -> tuple[PodView, ...]:
        """One, or one that goes and one that comes."""
        return self._pods_named(run, evaluator(run.name))

    def _pods_named(self, run: Key, stateful_set: str) -> tuple[PodView, ...]:
        views = (pod.view for pod in self._pods.of(run))
        return tuple(view for view in views if view.name.rpartition("-")[0] == stateful_set)

    def departed(self, unit: Key) -> Mapping[int, PodView]:
        """By host, the last that was seen of pods of the unit that are gone; of the newest gang that lost one."""
        return self._pods.departed(unit)

    def replace_pods(self, unit: Key, pods: Iterable[Object]) -> None:
        """A fresh list of a unit's pods: what is not in it is gone."""
        self._pods.replace(unit, pods)

    def put_node(self, body: Object, now: float) -> set[Key]:
        """Takes what matters of a node; the units and runs that have to look because of it."""
        name = body["metadata"]["name"]
        self._gone_nodes.pop(name, None)
        return self._see(view_node(body, self._nodes.get(name), now))

    def drop_node(self, body: Object) -> set[Key]:
        """The node is gone, and its pods with it; it is remembered until one of its name comes back."""
        return self._lose_node(body["metadata"]["name"])

    def keep_nodes(self, names: Collection[str]) -> set[Key]:
        """There are only these; the units and runs that have to look because others are gone."""
        lost = [node.name for node in self._nodes.values() if not node.gone and node.name not in names]
        return {key for name in lost for key in self._lose_node(name)}

    def nodes_of(self, pods: Iterable[PodView]) -> dict[str, NodeView]:
        """Those that these pods are on, as far as they were seen."""
        return {pod.node: self._nodes[pod.node] for pod in pods if pod.node in self._nodes}

    def sound_chips(self, kind: NodeKind) -> Mapping[str, int]:
        """By node pool of this accelerator and topology, the chips of its nodes that stay."""
        if self._chips is None:
            self._chips = sound_chips(self._nodes.values())
        return self._chips.get(kind, {})

    @property
    def sees_nodes(self) -> bool:
        """Any was seen; none without the right to watch them."""
        return bool(self._nodes)

    def _lose_node(self, name: str) -> set[Key]:
        self._gone_nodes[name] = None
        if len(self._gone_nodes) > LIMIT:
            oldest, _ = self._gone_nodes.popitem(last=False)
            self._nodes.pop(oldest, None)
        return self._see(gone(self._nodes.get(name, NodeView(name=name))))

    def _see(self, node: NodeView) -> set[Key]:
        if self._nodes.get(node.name) == node:
            return set()
        self._nodes[node.name] = node
        self._chips = None
        return self._pods.parents_on(node.name)

    def _forget(self, key: Key) -> None:
        parent = parent_key(key.kind, self._bodies.pop(key))
        for models in (self._units, self._specs):
            models.pop(key, None)
        self._pods.orphan(key)
        if parent is not None and (siblings := self._children.get(parent)):
            siblings.discard(key)
            if not siblings:
                del self._children[parent]


def _newer(one: Object, other: Object) -> bool:
    """Of one kind; versions grow over all objects of it."""
    return version_of(one["metadata"]) > version_of(other["metadata"])


def _same(one: Object, other: Object) -> bool:
    return bool(one["metadata"]["uid"] == other["metadata"]["uid"])


def _model(known: dict[Key, tuple[Object, M]], key: Key, body: Object, make: Callable[[Object], M]) -> M:
    """A version of an object is one body, so that identity tells whether the model is of this one."""
    found = known.get(key)
    if found is None or found[0] is not body:
        found = known[key] = (body, make(body))
    return found[1]


def _unit(body: Object) -> LearnerUnit:
    return LearnerUnit.model_validate({"spec": body["spec"], "status": body.get("status", {})})


def _run_spec(body: Object) -> TrainingRunSpec:
    return TrainingRunSpec.model_validate(body["spec"])
