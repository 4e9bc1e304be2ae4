"""What the operator makes of runs and units in the memory world. Every pod gets a node; nothing runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from memory_apiserver import Server
from memory_world import World, played

from atoll_operator.api.group import LABEL_SLICE, LABEL_UNIT, NODE_POOL, TPU

Object = dict[str, Any]
PASSES = 30
"""Seconds of simulated time, in which every object gets what it needs."""


def made(bodies: Iterable[Object]) -> list[Object]:
    """All objects after the operator has reconciled these runs and units."""

    async def work(world: World) -> list[Object]:
        world.operate()
        for body in bodies:
            world.server.create({**body, "metadata": {**body["metadata"], "namespace": "ns"}})
        for _ in range(PASSES):
            await asyncio.sleep(1)
            for pod in list(world.server.every("Pod")):
                if "nodeName" not in pod["spec"] and not pod["spec"].get("schedulingGates"):
                    _bind(world.server, pod)
        return list(world.server.objects.values())

    return played(0, work)


def _bind(server: Server, pod: Object) -> None:
    """To a node of its own, in the node pool of its slice."""
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    pool = {
        NODE_POOL: f"{labels[LABEL_UNIT]}-{labels.get(LABEL_SLICE)}",
        **pod["spec"].get("nodeSelector", {}),
    }
    status = {"allocatable": {TPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": f"node-{name}", "namespace": "ns", "labels": pool}
    server.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status})
    bound = server.get("Pod", name)
    bound["spec"]["nodeName"] = f"node-{name}"
    bound["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    server.change(bound)
