"""What the cluster alone can do: a bare client that creates the same objects, deletes and tells the same pods, and
decides nothing.

Same bodies but for their owner, same rights, as many calls at a time as the operator makes; a refusal ends the bench.
It writes no status.
The bodies are those that the operator came to in the end: what it had to wait for, such as the node pool that a
leader was bound in, the bare client knows beforehand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atoll_bench.client import MERGE, Client, Object, url
from atoll_operator.api.group import NODE_POOL

LEAVE_SECONDS = 1
"""Grace of a pod that still runs, as the operator gives it; 0 for one that has ended."""


def body(pod: Object, namespace: str) -> Object:
    """A pod as it was sent to the API server, for another namespace; what the cluster added is left out.

    Every pod names the pool that it ran in, which is one fake node of that name: a leader that came to another one
    would be in the way of the successors of (c), which go where their gang was.
    """
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    spec["nodeSelector"] = {**spec["nodeSelector"], NODE_POOL: pod["spec"]["nodeName"]}
    kept = {name: pod["metadata"][name] for name in ("name", "labels", "annotations")}
    metadata = {**kept, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def create(client: Client, pods: Iterable[Object], kind: str = "pods") -> None:
    """All of them, as many at a time as the client has connections."""
    await asyncio.gather(*(client.call("POST", url(kind, pod["metadata"]["namespace"]), pod) for pod in pods))


async def create_objects(client: Client, found: Mapping[str, Iterable[Object]], namespace: str) -> None:
    """What a run has besides pods, by kind, for another namespace."""
    for kind, bodies in found.items():
        await create(client, (_copy(body, namespace) for body in bodies), kind)


def _copy(found: Object, namespace: str) -> Object:
    metadata = {name: found["metadata"][name] for name in ("name", "labels")}
    sent = {key: value for key, value in found.items() if key not in ("metadata", "status")}
    return sent | {"metadata": {**metadata, "namespace": namespace}}


@dataclass(frozen=True)
class Heal:
    """What becomes of the pods of one unit, as bodies for the bare client."""

    gone: Sequence[Object]
    made: Sequence[Object]
    told: Sequence[Object]
    """Those that stay, with what they are told."""


def heal(before: Sequence[Object], after: Sequence[Object], namespace: str) -> Heal:
    """Of a unit's pods as the API server had them before and after."""
    old, new = ({pod["metadata"]["uid"]: pod for pod in pods} for pods in (before, after))
    return Heal(
        gone=[body(pod, namespace) for uid, pod in old.items() if uid not in new],
        made=[body(pod, namespace) for uid, pod in new.items() if uid not in old],
        told=[body(pod, namespace) for uid, pod in new.items() if uid in old],
    )


async def replace(client: Client, heals: Iterable[Heal], ended: frozenset[str]) -> None:
    """All units at a time; `ended` names the pods that run no more."""
    await asyncio.gather(*(_replace(client, heal, ended) for heal in heals))


async def _replace(client: Client, heal: Heal, ended: frozenset[str]) -> None:
    gone = (_delete(client, pod, pod["metadata"]["name"] in ended) for pod in heal.gone)
    await asyncio.gather(create(client, heal.made), *gone)
    await asyncio.gather(*(_tell(client, pod) for pod in heal.told))


async def _tell(client: Client, pod: Object) -> None:
    metadata = pod["metadata"]
    change = {"metadata": {"annotations": metadata["annotations"]}}
    await client.call("PATCH", url("pods", metadata["namespace"], metadata["name"]), change, kind=MERGE)


async def _delete(client: Client, pod: Object, ended: bool) -> None:
    grace = 0 if ended else LEAVE_SECONDS
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
    metadata = pod["metadata"]
    await client.call("DELETE", url("pods", metadata["namespace"], metadata["name"]), options)
