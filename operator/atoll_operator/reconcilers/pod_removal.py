"""Deletes a pod as it was planned, and has the inventory know at once."""

from __future__ import annotations

from atoll_operator.api.group import Object
from atoll_operator.cluster import Cluster
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.plan.removal import Removal
from atoll_operator.reconcilers.inventory import Inventory


async def remove_pod(cluster: Cluster, inventory: Inventory, namespace: str, removal: Removal) -> None:
    """That very pod, and no other of its name; without a grace period its object is gone afterwards.

    Raises:
        ApiError: it was refused.
    """
    name = removal.name
    try:
        if removal.finalizer:
            await cluster.release("Pod", namespace, name, removal.uid, removal.finalizer)
        answer: Object = await cluster.delete("Pod", namespace, name, removal.uid, removal.grace_seconds)
    except (NotFound, Conflict):
        answer = {}
    if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
        inventory.put("Pod", answer)
    else:
        inventory.drop("Pod", {"metadata": {"name": name, "namespace": namespace, "uid": removal.uid}})
