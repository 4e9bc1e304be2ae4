"""What the reconcilers of one term of leadership share: their parts, and the writes that both make."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from atoll_operator.api.group import Object
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec
from atoll_operator.cluster import Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Recorder
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.conditions import only_figures
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import Removal
from atoll_operator.polling.evaluator import EvaluatorPoller
from atoll_operator.polling.syncer import SyncerPoller
from atoll_operator.reconcilers.inventory import Inventory, parent_key
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS, RUN_SECONDS
from atoll_operator.settings import Settings


@dataclass(slots=True, kw_only=True)
class Memory:
    """What a reconciler remembers of one object; dropped with it."""

    uid: str
    figures_due: float = float("-inf")
    """Monotonic seconds from which figures alone are written to its status again."""


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes a status once per pass, not without a change, and only over the version that the plan saw."""

    cluster: Cluster
    inventory: Inventory
    queue: WorkQueue[Key]

    async def write(self, key: Key, body: Object, status: Object, memory: Memory) -> None:
        """Puts a write of progress figures off where it is not due.

        Raises:
            Conflict: the object changed meanwhile; the watch tells how.
            NotFound: it was deleted.
        """
        old = body.get("status", {})
        if status == old:
            return
        figures, now = only_figures(old, status), time.monotonic()
        if figures and now < memory.figures_due:
            self.queue.add_after(key, memory.figures_due - now)
            return
        answer = await self.cluster.write_status(body, status)
        # With jitter, because many units begin to train together.
        memory.figures_due = now + FIGURES_SECONDS[key.kind] * random.uniform(0.8, 1.0)
        self.inventory.put(key.kind, answer)
        # The watch tells nothing new about a write of our own.
        if not figures and (run := parent_key(key.kind, body)) is not None:
            self.queue.add_spaced(run, RUN_SECONDS)


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
    status: StatusWriter

    def pod_settings(self, run: str, spec: TrainingRunSpec, held: RuntimeStatus | None) -> PodSettings:
        """See `pod_settings`; the defaults are this operator's."""
        own = self.settings
        environment, policy = own.runtime_environment, own.pull_policy
        return pod_settings(
            run, spec, held, image=own.runtime_image, environment=environment, pull_policy=policy
        )

    async def remove_pod(self, namespace: str, removal: Removal) -> None:
        """Deletes that very pod, and no other of its name, and has the inventory know at once. Without a grace period
        its object is gone afterwards.

        Raises:
            ApiError: it was refused.
        """
        name, uid = removal.name, removal.uid
        try:
            if removal.finalizer:
                await self.cluster.release("Pod", namespace, name, uid, removal.finalizer)
            answer: Object = await self.cluster.delete("Pod", namespace, name, uid, removal.grace_seconds)
        except (NotFound, Conflict):
            answer = {}
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
            self.inventory.put("Pod", answer)
        else:
            self.inventory.drop("Pod", {"metadata": {"name": name, "namespace": namespace, "uid": uid}})
