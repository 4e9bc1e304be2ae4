"""The last known body of every object that matters, fed by the watches and by our own writes.

Our own writes go in at once, so that a lagging watch never makes a second gang; what is older than what we know is
ignored, and what we saw go does not come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, LABEL_UNIT, SYNCER, Object, controller_uid
from atoll_operator.plan.nodes import NodeView, gone, view_node
from atoll_operator.plan.observe import PodView, view

Kind = Literal["TrainingRun", "LearnerUnit", "Pod", "StatefulSet"]
GONE_LIMIT = 10_000
"""Uids remembered of objects that are gone."""


class Key(NamedTuple):
    """One object."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Store:
    """All objects by key; pods also by unit and by node, units also by run. Of nodes only a view is kept."""

    def __init__(self) -> None:
        self._bodies: dict[Key, Object] = {}
        self._children: dict[Key, set[Key]] = {}
        self._on_node: dict[str, set[Key]] = {}
        self._departed: dict[Key, dict[str, PodView]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._nodes: dict[str, NodeView] = {}
        self._gone_nodes: OrderedDict[str, None] = OrderedDict()

    def put(self, kind: Kind, body: Object) -> None:
        """Takes a body unless a newer one of the same object is known."""
        key = key_of(kind, body)
        if body["metadata"]["uid"] in self._gone:
            return
        known = self._bodies.get(key)
        if known is not None and _same(known, body) and _version(body) < _version(known):
            return
        body.setdefault("kind", kind)
        if known is not None and _node(known) != _node(body):
            self._leave(key, _node(known))
        self._bodies[key] = body
        parent = parent_key(kind, body)
        if parent is not None:
            self._children.setdefault(parent, set()).add(key)
        if _node(body):
            self._on_node.setdefault(_node(body), set()).add(key)

    def drop(self, kind: Kind, body: Object) -> None:
        """The object is gone for good."""
        key = key_of(kind, body)
        self._gone[body["metadata"]["uid"]] = None
        while len(self._gone) > GONE_LIMIT:
            self._gone.popitem(last=False)
        known = self._bodies.get(key)
        if known is not None and _same(known, body):
            self._forget(key, known)
        if kind == "Pod" and "status" in body:
            self._remember(body)
        self._departed.pop(key, None)

    def get(self, key: Key) -> Object | None:
        return self._bodies.get(key)

    def live(self, key: Key) -> Object | None:
        """The body, unless somebody has begun to delete it."""
        body = self._bodies.get(key)
        return None if body is None or "deletionTimestamp" in body["metadata"] else body

    def keys(self, *kinds: Kind) -> Iterator[Key]:
        return (key for key in list(self._bodies) if key.kind in kinds)

    def pods_of(self, unit: Key, uid: str) -> list[Object]:
        """The pods that the unit of this uid owns."""
        return [body for body in self._children_of(unit, "Pod") if controller_uid(body) == uid]

    def departed(self, unit: Key) -> Mapping[str, PodView]:
        """The last that was seen of a unit's pods that are gone, by name; of the newest incarnation that lost one."""
        return self._departed.get(unit, {})

    def units_of(self, run: Key) -> list[Object]:
        return list(self._children_of(run, "LearnerUnit"))

    def syncer_pods(self, run: Key) -> list[Object]:
        """Those of all shards."""
        return list(self._children_of(run, "Pod"))

    def replace_pods(self, unit: Key, pods: Iterable[Object]) -> None:
        """A fresh list of a unit's pods: what is not in it is gone."""
        fresh = {key_of("Pod", pod): pod for pod in pods}
        for known in list(self._children_of(unit, "Pod")):
            if key_of("Pod", known) not in fresh:
                self.drop("Pod", known)
        for pod in fresh.values():
            self.put("Pod", pod)

    def meet_node(self, body: Object, now: float) -> None:
        """Takes a node that was never seen; what becomes of it later is told by `put_node` and `drop_node`."""
        name = body["metadata"]["name"]
        if name not in self._nodes:
            self._nodes[name] = view_node(body, None, now)

    def put_node(self, body: Object, now: float) -> set[Key]:
        """Takes what matters of a node; the units and runs that have to look because of it."""
        name = body["metadata"]["name"]
        self._gone_nodes.pop(name, None)
        return self._see(view_node(body, self._nodes.get(name), now))

    def drop_node(self, body: Object) -> set[Key]:
        """The node is gone, and its pods with it; it is remembered until one of its name comes back."""
        name = body["metadata"]["name"]
        self._gone_nodes[name] = None
        while len(self._gone_nodes) > GONE_LIMIT:
            oldest, _ = self._gone_nodes.popitem(last=False)
            self._nodes.pop(oldest, None)
        return self._see(gone(self._nodes.get(name, NodeView(name=name))))

    def nodes_of(self, pods: Iterable[PodView]) -> dict[str, NodeView]:
        """Those that these pods are on, as far as they were seen."""
        return {pod.node: self._nodes[pod.node] for pod in pods if pod.node in self._nodes}

    def _see(self, node: NodeView) -> set[Key]:
        if self._nodes.get(node.name) == node:
            return set()
        self._nodes[node.name] = node
        pods = (self._bodies[key] for key in self._on_node.get(node.name, ()))
        return {parent for pod in pods if (parent := parent_key("Pod", pod)) is not None}

    def _children_of(self, parent: Key, kind: Kind) -> Iterator[Object]:
        for key in sorted(self._children.get(parent, ())):
            if key.kind == kind:
                yield self._bodies[key]

    def _forget(self, key: Key, body: Object) -> None:
        del self._bodies[key]
        self._leave(key, _node(body))
        parent = parent_key(key.kind, body)
        if parent is not None and parent in self._children:
            self._children[parent].discard(key)
            if not self._children[parent]:
                del self._children[parent]

    def _remember(self, pod: Object) -> None:
        unit, last = parent_key("Pod", pod), view(pod)
        if unit is None or unit.kind != "LearnerUnit" or unit not in self._bodies:
            return
        known = self._departed.get(unit, {})
        newest = max((each.incarnation for each in known.values()), default=0)
        if last.incarnation == newest:
            self._departed[unit] = {**known, last.name: last}
        elif last.incarnation > newest:
            self._departed[unit] = {last.name: last}

    def _leave(self, key: Key, node: str) -> None:
        if pods := self._on_node.get(node):
            pods.discard(key)
            if not pods:
                del self._on_node[node]


def key_of(kind: Kind, body: Object) -> Key:
    return Key(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def parent_key(kind: Kind, body: Object) -> Key | None:
    """The TrainingRun or LearnerUnit that has to look when this object changes."""
    namespace = body["metadata"]["namespace"]
    labels = body["metadata"].get("labels", {})
    if kind == "LearnerUnit":
        return Key("TrainingRun", namespace, body["spec"]["run"])
    if kind == "StatefulSet" or (kind == "Pod" and labels.get(LABEL_COMPONENT) == SYNCER):
        return Key("TrainingRun", namespace, labels.get(LABEL_RUN, ""))
    if kind == "Pod":
        return Key("LearnerUnit", namespace, labels.get(LABEL_UNIT, ""))
    return None


def _node(body: Object) -> str:
    """Of a pod that has one; empty for all other objects."""
    return str(body.get("spec", {}).get("nodeName", ""))


def _same(one: Object, other: Object) -> bool:
    return bool(one["metadata"]["uid"] == other["metadata"]["uid"])


def _version(body: Object) -> int:
    """Resource versions of one object are numbers that grow (KEP-5504, Kubernetes 1.35)."""
    text = body["metadata"].get("resourceVersion", "0")
    return int(text) if text.isdigit() else 0
