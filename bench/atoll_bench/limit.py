"""A bare client that shows what the cluster alone can do.

It creates the same objects as the operator, and deletes and patches the same pods, but decides nothing and writes no
status. It has the operator's rights and makes as many calls at a time. A refusal ends the bench. Its bodies are the
operator's final ones without their owner. So it knows in advance what the operator had to wait for, such as the node
pool in which a leader was bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from atoll_bench.client import MERGE, Client, Object, url
from atoll_operator.api.group import NODE_POOL

LEAVE_SECONDS = 1
"""Grace period of a pod that still runs, as in the operator. A pod that has ended gets 0."""


def body(pod: Object, namespace: str) -> Object:
    """Returns a pod as it was sent to the API server, for another namespace and without what the cluster added.

    Every pod selects the pool that it ran in, which is one fake node of that name. Otherwise a leader could be bound
    in another pool and block the successors of (c), which go where their gang was.
    """
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    spec["nodeSelector"] = {**spec["nodeSelector"], NODE_POOL: pod["spec"]["nodeName"]}
    kept = {name: pod["metadata"][name] for name in ("name", "labels", "annotations")}
    metadata = {**kept, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def create(client: Client, pods: Iterable[Object], kind: str = "pods") -> None:
    """Creates all of them, as many at a time as the client has connections."""
    await asyncio.gather(*(client.call("POST", url(kind, pod["metadata"]["namespace"]), pod) for pod in pods))


async def create_objects(client: Client, found: Mapping[str, Iterable[Object]], namespace: str) -> None:
    """Creates a run's objects other than pods, given by kind, in another namespace."""
    for kind, bodies in found.items():
        await create(client, (_copy(body, namespace) for body in bodies), kind)


def _copy(found: Object, namespace: str) -> Object:
    metadata = {name: found["metadata"][name] for name in ("name", "labels")}
    sent = {key: value for key, value in found.items() if key not in ("metadata", "status")}
    return sent | {"metadata": {**metadata, "namespace": namespace}}


@dataclass(frozen=True)
class Heal:
    """The changes of one unit's pods, as bodies for the bare client."""

    gone: Sequence[Object]
    made: Sequence[Object]
    told: Sequence[Object]
    """Pods that stay, with their new annotations."""

    async def apply(self, client: Client, ended: Collection[str]) -> None:
        """Replaces the pods. `ended` names the pods that have ended."""
        gone = (_delete(client, pod, pod["metadata"]["name"] in ended) for pod in self.gone)
        await asyncio.gather(create(client, self.made), *gone)
        await asyncio.gather(*(_tell(client, pod) for pod in self.told))


def heal(before: Sequence[Object], after: Sequence[Object], namespace: str) -> Heal:
    """Returns the difference between a unit's pods as the API server had them before and after."""
    old, new = ({pod["metadata"]["uid"]: pod for pod in pods} for pods in (before, after))
    return Heal(
        gone=[body(pod, namespace) for uid, pod in old.items() if uid not in new],
        made=[body(pod, namespace) for uid, pod in new.items() if uid not in old],
        told=[body(pod, namespace) for uid, pod in new.items() if uid in old],
    )


async def _tell(client: Client, pod: Object) -> None:
    metadata = pod["metadata"]
    change = {"metadata": {"annotations": metadata["annotations"]}}
    await client.call("PATCH", url("pods", metadata["namespace"], metadata["name"]), change, kind=MERGE)


async def _delete(client: Client, pod: Object, ended: bool) -> None:
    grace = 0 if ended else LEAVE_SECONDS
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
    metadata = pod["metadata"]
    await client.call("DELETE", url("pods", metadata["namespace"], metadata["name"]), options)
