"""What the reconcilers of one term of leadership share."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass

from atoll_operator.api.group import Object
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec
from atoll_operator.cluster import Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.client import STRATEGIC
from atoll_operator.kube.errors import Conflict, NotFound, Refused
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Recorder
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import Removal
from atoll_operator.polling import EvaluatorPoller, SyncerPoller
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.settings import Settings

REFUSED_SECONDS = 5.0
"""Until the next pass after the API server refused an object."""


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """Made anew for each term, because another operator may have acted."""

    settings: Settings
    cluster: Cluster
    inventory: Inventory
    queue: WorkQueue[Key]
    syncers: SyncerPoller
    evaluators: EvaluatorPoller
    metrics: Metrics
    recorder: Recorder
    applier: Applier

    def pod_settings(self, run: str, spec: TrainingRunSpec, held: RuntimeStatus | None) -> PodSettings:
        own = self.settings
        environment, policy = own.runtime_env, own.runtime_pull_policy
        defaults = PodSettings(run=run, image=own.runtime_image, pull_policy=policy, environment=environment)
        return pod_settings(defaults, spec, held)

    async def remove_pod(self, namespace: str, removal: Removal) -> None:
        """Deletes that very pod, and no other of its name, and has the inventory know at once. Without a grace period
        its object is gone afterwards.

        Raises:
            ApiError: it was refused.
        """
        name, uid, answer = removal.name, removal.uid, Object()
        with suppress(NotFound, Conflict):
            if removal.finalizer:
                remove = {"$deleteFromPrimitiveList/finalizers": [removal.finalizer]}
                await self.cluster.patch_metadata("Pod", namespace, name, uid, STRATEGIC, **remove)
            answer = await self.cluster.delete("Pod", namespace, name, uid, removal.grace_seconds)
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
            self.inventory.put("Pod", answer)
        else:
            self.inventory.drop("Pod", {"metadata": {"name": name, "namespace": namespace, "uid": uid}})


async def refusal_of(work: Awaitable[None]) -> str:
    """Why the API server refused an object; empty if it did not."""
    try:
        await work
    except Refused as error:
        return str(error)
    return ""
