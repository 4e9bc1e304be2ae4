"""What the reconcilers of one term of leadership share."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec
from atoll_operator.cluster import Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Recorder
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.polling.evaluator import EvaluatorPoller
from atoll_operator.polling.syncer import SyncerPoller
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.settings import Settings


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
        """See `pod_settings`; the defaults are this operator's."""
        own = self.settings
        environment, policy = own.runtime_environment, own.pull_policy
        return pod_settings(
            run, spec, held, image=own.runtime_image, environment=environment, pull_policy=policy
        )
