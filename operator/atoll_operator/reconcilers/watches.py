"""Watches of all that plans look at: runs, units, their pods, what they and their runs own, nodes.

An event goes from the wire into the store, and only a change that matters to a plan makes somebody look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from atoll_operator.api.group import LABEL_MANAGER, MANAGER, Object
from atoll_operator.kube.credentials import Credentials
from atoll_operator.kube.keys import Key, Kind, key_of, parent_key
from atoll_operator.kube.paths import collection
from atoll_operator.kube.reflector import Name, Reflector
from atoll_operator.kube.urgency import News
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.belongings import KINDS
from atoll_operator.reconcilers.store import Store

OURS = f"{LABEL_MANAGER}={MANAGER}"
SELECTORS: Mapping[Kind, str] = {
    "TrainingRun": "",
    "LearnerUnit": "",
    "Pod": OURS,
    "StatefulSet": OURS,
    "Service": "",
    "ConfigMap": OURS,
    "Secret": OURS,
}
"""Runs are people's, and a unit may be made by hand, without our label; a Service of others may have a unit's name, as
a request for each new unit would find out too."""
PLANNED: tuple[Kind, ...] = ("TrainingRun", "LearnerUnit")
"""Kinds whose objects are looked at themselves; all else belongs to one of them."""
Changed = Callable[[Key, News], None]


class Watches:
    """One reflector for each kind, and for each namespace where the operator is limited to some.

    Args:
        namespaces: empty for the whole cluster.
        nodes: whether to watch them too, which takes a right of the whole cluster.
    """

    def __init__(
        self,
        credentials: Credentials,
        metrics: Metrics,
        store: Store,
        namespaces: Collection[str],
        changed: Changed,
        nodes: bool,
    ) -> None:
        self._reflectors = [
            Reflector(
                credentials,
                metrics,
                collection(kind, namespace),
                selector,
                _Sink(kind, namespace, store, changed),
                contents=kind not in KINDS,
            )
            for kind, selector in SELECTORS.items()
            for namespace in namespaces or ("",)
        ]
        if nodes:
            self._reflectors.append(
                Reflector(credentials, metrics, "/api/v1/nodes", "", _NodeSink(store, changed))
            )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name="watch")

    async def filled(self) -> None:
        """Returns when the first list of each is in the store."""
        await asyncio.gather(*(reflector.filled.wait() for reflector in self._reflectors))

    @property
    def refusal(self) -> str:
        """What the API server says of the watches that it refuses; empty while it refuses none."""
        return "; ".join(reflector.refusal for reflector in self._reflectors if reflector.refusal)


@dataclass(frozen=True, slots=True)
class _Sink:
    """Into the store, and word to who has to look."""

    kind: Kind
    namespace: str
    """Empty: all."""
    store: Store
    changed: Changed

    def seen(self, body: Object) -> None:
        news = self.store.put(self.kind, body)
        if news is News.NONE:
            return
        if self.kind in PLANNED:
            self.changed(key_of(self.kind, body), news)
            news = News.CALM  # for a unit's run, which adds up many
        self._tell_parent(body, news)

    def gone(self, body: Object) -> None:
        news = self.store.drop(self.kind, body)
        if news is News.NONE:
            return
        if self.kind in PLANNED:
            self.changed(key_of(self.kind, body), news)
        self._tell_parent(body, news)

    def listed(self, names: Collection[Name], version: int) -> None:
        for key in self.store.keep(self.kind, self.namespace, names, version):
            self.changed(key, News.URGENT)

    def _tell_parent(self, body: Object, news: News) -> None:
        parent = parent_key(self.kind, body)
        if parent is not None:
            self.changed(parent, news)


@dataclass(frozen=True, slots=True)
class _NodeSink:
    """Of a node only a view is kept: it is some 20 KB on GKE, and its status is written every five minutes."""

    store: Store
    changed: Changed

    def seen(self, body: Object) -> None:
        self._tell(self.store.put_node(body, time.time()))

    def gone(self, body: Object) -> None:
        self._tell(self.store.drop_node(body))

    def listed(self, names: Collection[Name], version: int) -> None:
        self._tell(self.store.keep_nodes({name for _, name in names}))

    def _tell(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.changed(key, News.URGENT)
