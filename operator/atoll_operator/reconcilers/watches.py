"""Watches of all that plans look at: runs, units, their pods, what they and their runs own, nodes.

An event goes from the wire into the store, and only a change that matters to a plan makes somebody look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from atoll_operator.api.group import LABEL_MANAGER, MANAGER, Object
from atoll_operator.cluster import RESOURCES
from atoll_operator.kube.cache import Change
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.reflector import Name, Reflector
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.inventory import Inventory

OURS = f"{LABEL_MANAGER}={MANAGER}"
SELECTORS: Mapping[str, str] = {
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
KINDS = ("Service", "ConfigMap", "Secret")
"""Kinds of which only the metadata is watched."""
Changed = Callable[[Change, bool], None]


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
        store: Inventory,
        namespaces: Collection[str],
        changed: Changed,
        nodes: bool,
    ) -> None:
        self._reflectors = [
            Reflector(
                credentials,
                metrics.count_api_error,
                RESOURCES[kind].path(namespace),
                selector,
                _Sink(kind, namespace, store, changed),
                contents=kind not in KINDS,
            )
            for kind, selector in SELECTORS.items()
            for namespace in namespaces or ("",)
        ]
        if nodes:
            self._reflectors.append(
                Reflector(
                    credentials,
                    metrics.count_api_error,
                    "/api/v1/nodes",
                    "",
                    _Sink("Node", "", store, changed),
                )
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
    """Updates the inventory and passes changes on."""

    kind: str
    namespace: str
    """Empty: all."""
    store: Inventory
    changed: Changed

    def seen(self, body: Object) -> None:
        if (change := self.store.put(self.kind, body)) is not None:
            self.changed(change, False)

    def gone(self, body: Object) -> None:
        if (change := self.store.drop(self.kind, body)) is not None:
            self.changed(change, False)

    def listed(self, names: Collection[Name], version: int) -> None:
        for change in self.store.keep(self.kind, self.namespace, names, version):
            self.changed(change, True)
