"""A gang as a plain pod group of Kueue: all its pods are admitted together by quota, and wait behind a gate until then.

Each gang is a group of its own. Kueue gives the quota of a group back when its last pod has ended, because no pod of it
is ever replaced: what takes its place is another gang, and another group.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll_operator.api.group import LABEL_POD_GROUP, LABEL_QUEUE, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.view import PodView

PREFIX = "kueue.x-k8s.io/"
SIZE = f"{PREFIX}pod-group-total-count"
PRIORITY = f"{PREFIX}priority-class"
MANAGED = f"{PREFIX}managed"
"""A label, and the name of Kueue's finalizer."""
RETRIABLE = f"{PREFIX}retriable-in-group"
FORCIBLE = f"{PREFIX}safe-to-forcefully-delete"
"""A pod that is still terminating on a node that cannot be reached holds the quota of its whole gang. Kueue may end it
where its gate `FailureRecoveryPolicy` is on: the syncer fences a process that lives on there."""
GATE = f"{PREFIX}admission"
QUEUED = "Queued"
"""Reason of `Scheduled` while a gang waits for admission."""
GATED = "SchedulingGated"
"""The same while somebody else's gate holds a pod; the word is Kubernetes' own."""


def queued(pod: Object, spec: LearnerUnitSpec, group: str, size: int) -> Object:
    """The pod as one of `size` in this group; as it was where the unit names no queue.

    Label `managed` and the gate are what Kueue's webhook would add. With them no pod can run unadmitted: neither where
    that webhook leaves our namespace out, nor before Kueue is there. Its finalizer is left to Kueue, who takes it away.
    """
    if spec.queue_name is None:
        return pod
    metadata = pod["metadata"]
    labels = {LABEL_QUEUE: spec.queue_name, LABEL_POD_GROUP: group, MANAGED: "true"}
    if spec.queue_priority_class is not None:
        labels[PRIORITY] = spec.queue_priority_class
    annotations = {SIZE: str(size), RETRIABLE: "false", FORCIBLE: "true"}
    return {
        **pod,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], **labels},
            "annotations": {**metadata.get("annotations", {}), **annotations},
        },
        "spec": {**pod["spec"], "schedulingGates": [{"name": GATE}]},
    }


def held(pods: Sequence[PodView]) -> tuple[str, str] | None:
    """Why the scheduler may not look at a gang yet; None when it may."""
    gated = [pod for pod in pods if pod.gates]
    if not gated:
        return None
    first, count = gated[0], f"{len(gated)} of {len(pods)} pods"
    others = sorted({gate for pod in gated for gate in pod.gates if not gate.startswith(PREFIX)})
    if others:
        return GATED, f"{count} wait for the scheduling gates {', '.join(others)} to be taken away"
    return (
        QUEUED,
        f"{count} wait for admission by queue {first.queue}; `kubectl describe workload {first.group}` says why",
    )
