"""The last known view of every pod: by its unit or run, and by its node. No body is kept: 38 KB each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from atoll_operator.api.group import Object, controller_uid
from atoll_operator.kube.keys import Key, key_of, parent_key, version_of
from atoll_operator.kube.tombstones import Gone
from atoll_operator.kube.urgency import News
from atoll_operator.plan.pods.view import PodView, view

K = TypeVar("K")
UPWARD = (
    "gates", "message", "node", "phase", "ready", "reason", "scheduled_at", "started_at",
    "unschedulable", "unschedulable_since", "waiting", "waiting_message",
)  # fmt: skip
"""Fields of a view that change while a pod comes up."""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """One pod, and what is needed of it besides its view."""

    view: PodView
    version: int
    owner: str
    """Uid of its controller."""
    parent: Key
    """Who has to look when it changes."""


class Pods:
    """What is older than what is known is ignored, and what was seen to go does not come back.

    Args:
        lives: whether a parent is there, so that its pods that are gone are worth remembering.
    """

    def __init__(self, lives: Callable[[Key], bool]) -> None:
        self._lives = lives
        self._pods: dict[Key, KnownPod] = {}
        self._children: dict[Key, set[Key]] = {}
        self._on_node: dict[str, set[Key]] = {}
        self._departed: dict[Key, dict[int, PodView]] = {}
        self._gone = Gone()

    def put(self, body: Object) -> News:
        """Takes the state of a pod."""
        key, metadata = key_of("Pod", body), body["metadata"]
        if metadata["uid"] in self._gone:
            return News.NONE
        known = self._pods.get(key)
        if known is not None and known.view.uid == metadata["uid"] and version_of(metadata) <= known.version:
            return News.NONE
        new = _known(body)
        if known is not None:
            self._unlink(key, known)
        self._pods[key] = new
        self._children.setdefault(new.parent, set()).add(key)
        if new.view.node:
            self._on_node.setdefault(new.view.node, set()).add(key)
        return News.URGENT if known is None else self._news(known, new)

    def drop(self, body: Object) -> News:
        """The pod is gone for good; a body with a status is the last that was seen of it."""
        key, uid = key_of("Pod", body), body["metadata"]["uid"]
        news = News.NONE if uid in self._gone else News.URGENT
        known = self._pods.get(key)
        if known is not None and known.view.uid == uid:
            self._forget(key)
            if known.view.deletion_time is not None:
                news = News.CALM  # that it goes was the news
        self._gone.add(uid)
        if "status" in body:
            self._remember(_known(body))
        return news

    def keep(self, namespace: str, names: Collection[tuple[str, str]], version: int) -> set[Key]:
        """A list of a whole namespace, or of all where that is empty, had only these pods at that version.

        Returns:
            Who lost one.
        """
        lost = [
            key
            for key, pod in self._pods.items()
            if namespace in ("", key.namespace) and key[1:] not in names and pod.version <= version
        ]
        return {self._lose(key) for key in lost}

    def of(self, parent: Key) -> Iterator[KnownPod]:
        """In order of names."""
        for key in sorted(self._children.get(parent, ())):
            yield self._pods[key]

    def replace(self, parent: Key, bodies: Iterable[Object]) -> None:
        """A fresh list of one parent's pods: what is not in it is gone."""
        fresh = {key_of("Pod", body): body for body in bodies}
        for key in self._children.get(parent, set()) - set(fresh):
            self._lose(key)
        for body in fresh.values():
            self.put(body)

    def parents_on(self, node: str) -> set[Key]:
        """Who has to look when this node changes."""
        return {self._pods[key].parent for key in self._on_node.get(node, ())}

    def departed(self, parent: Key) -> Mapping[int, PodView]:
        """The last that was seen of pods that are gone, by host; of the newest gang that lost one."""
        return self._departed.get(parent, {})

    def orphan(self, parent: Key) -> None:
        """The parent is gone: what became of its pods is of no interest any more."""
        self._departed.pop(parent, None)

    def _lose(self, key: Key) -> Key:
        """The pod went without a word; returns its parent."""
        known = self._forget(key)
        self._gone.add(known.view.uid)
        self._remember(known)
        return known.parent

    def _forget(self, key: Key) -> KnownPod:
        known = self._pods.pop(key)
        self._unlink(key, known)
        return known

    def _news(self, old: KnownPod, new: KnownPod) -> News:
        """The node of a pod that may choose its pool is urgent: others of its slice follow it there."""
        placed = new.view.node != old.view.node
        if placed and not new.view.pool:
            return News.URGENT
        return _news(old.view, new.view)

    def _unlink(self, key: Key, known: KnownPod) -> None:
        _discard(self._children, known.parent, key)
        _discard(self._on_node, known.view.node, key)

    def _remember(self, pod: KnownPod) -> None:
        parent, last = pod.parent, pod.view
        if parent.kind != "LearnerUnit" or not self._lives(parent):
            return
        known = self._departed.get(parent, {})
        newest = max((each.gang for each in known.values()), default=0)
        if last.gang == newest:
            self._departed[parent] = {
                **known,
                last.host: max(last, known.get(last.host, last), key=_made_for),
            }
        elif last.gang > newest:
            self._departed[parent] = {last.host: last}


def _made_for(pod: PodView) -> int:
    return pod.made_for


def _known(body: Object) -> KnownPod:
    parent = parent_key("Pod", body)
    assert parent is not None, "every pod has a parent"
    return KnownPod(view(body), version_of(body["metadata"]), controller_uid(body), parent)


def _news(old: PodView, new: PodView) -> News:
    """Whatever is not known to be part of coming up is urgent."""
    if old == new:
        return News.NONE
    if new.ended or (old.ready and not new.ready):
        return News.URGENT
    same = replace(new, **{name: getattr(old, name) for name in UPWARD})
    return News.CALM if same == old else News.URGENT


def _discard(index: dict[K, set[Key]], name: K, key: Key) -> None:
    if keys := index.get(name):
        keys.discard(key)
        if not keys:
            del index[name]
