"""What the cluster alone can do: a bare client that deletes and creates the very same pods, and decides nothing.

Same bodies but for their owner, same rights, as many calls at a time as the operator makes; a refusal ends the bench.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any

from atoll_bench.client import Client, Object, pods_path
from atoll_operator.api.group import LABEL_INCARNATION

LEAVE_SECONDS = 1
"""Grace of a pod that still runs, as the operator gives it; 0 for one that has ended."""


def body(pod: Object, namespace: str) -> Object:
    """A pod as it was sent to the API server, for another namespace; what the cluster added is left out."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    metadata = {"name": pod["metadata"]["name"], "namespace": namespace, "labels": pod["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def successor(pod: Object) -> Object:
    """The same pod of the unit's next incarnation, near to its new peers rather than to the old ones."""
    incarnation = int(pod["metadata"]["labels"][LABEL_INCARNATION])
    new: Object = _relabelled(pod, str(incarnation + 1))
    name = re.sub(rf"-{incarnation}-(\d+)$", rf"-{incarnation + 1}-\1", new["metadata"]["name"])
    new["metadata"]["name"] = new["spec"]["hostname"] = name
    return new


def _relabelled(value: Any, incarnation: str) -> Any:
    """A copy with this incarnation in every label and selector."""
    if isinstance(value, dict):
        return {
            key: incarnation if key == LABEL_INCARNATION else _relabelled(item, incarnation)
            for key, item in value.items()
        }
    return [_relabelled(item, incarnation) for item in value] if isinstance(value, list) else value


async def create(client: Client, pods: Sequence[Object]) -> None:
    """All of them, as many at a time as the client has connections."""
    await asyncio.gather(*(client.call("POST", pods_path(pod["metadata"]["namespace"]), pod) for pod in pods))


async def replace(client: Client, gangs: Iterable[Sequence[Object]], ended: frozenset[str]) -> None:
    """Deletes each gang and creates it anew, all gangs at a time; `ended` names the pods that run no more."""
    await asyncio.gather(*(_replace(client, gang, ended) for gang in gangs))


async def _replace(client: Client, gang: Sequence[Object], ended: frozenset[str]) -> None:
    await asyncio.gather(*(_delete(client, pod, pod["metadata"]["name"] in ended) for pod in gang))
    await create(client, [successor(pod) for pod in gang])


async def _delete(client: Client, pod: Object, ended: bool) -> None:
    grace = 0 if ended else LEAVE_SECONDS
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
    metadata = pod["metadata"]
    await client.call("DELETE", pods_path(metadata["namespace"], metadata["name"]), options)
