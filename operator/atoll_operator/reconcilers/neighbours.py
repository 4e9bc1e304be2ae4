"""Pods that the operator does not watch, on nodes that it is about to give to pods of a unit.

Nobody watches all pods of a cluster for the sake of the few on TPU nodes, so a node is asked about when it matters.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from itertools import islice

from atoll_operator.api.group import LABEL_UNIT, Object
from atoll_operator.kube.client import AT_ONCE, Cluster
from atoll_operator.kube.errors import Refused
from atoll_operator.kube.logs import tell

REFUSED_SECONDS = 300.0
"""Before we ask again: rights that are missing may be given."""
_OF_THE_NODE = ("DaemonSet", "Node")
"""Owners of pods that every node has some of, without chips."""


class Neighbours:
    """Asks the API server's memory, which is milliseconds old; a kubelet has the last word."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._refused_until = float("-inf")
        """Monotonic seconds."""

    @property
    def refused(self) -> bool:
        """We may not ask, so that nobody is made for a node."""
        return time.monotonic() < self._refused_until

    async def on_any(self, nodes: Collection[str], unit: str) -> bool:
        """Whether there is a pod not of this unit on one of them that may have chips; also where we may not ask.

        Raises:
            Unreachable: the API server does not answer.
        """
        if self.refused:
            return True
        waiting = iter(sorted(nodes))
        try:
            while some := list(islice(waiting, AT_ONCE)):
                if any(await asyncio.gather(*(self._taken(node, unit) for node in some))):
                    return True
        except Refused as error:
            self._refused_until = time.monotonic() + REFUSED_SECONDS
            tell(
                logging.INFO,
                "may not list the pods of all namespaces: every pod is left to the scheduler",
                error=str(error),
            )
            return True
        return False

    async def _taken(self, node: str, unit: str) -> bool:
        pods = await self._cluster.pods_on(node, f"{LABEL_UNIT}!={unit}")
        return not all(_of_the_node(pod) for pod in pods)


def _of_the_node(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner["kind"] in _OF_THE_NODE for owner in owners if owner.get("controller"))
