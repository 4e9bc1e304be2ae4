"""The pods of a placement as a pod group of Kueue: admitted together by quota, and gated until then.

Each placement is a group of its own. Kueue returns the quota of a group when its last pod has ended, because none of
its pods is ever replaced: the next placement is another group.
"""

from __future__ import annotations

from atoll_operator.api.group import LABEL_POD_GROUP, LABEL_QUEUE, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec

PREFIX = "kueue.x-k8s.io/"
SIZE = f"{PREFIX}pod-group-total-count"
PRIORITY = f"{PREFIX}priority-class"
MANAGED = f"{PREFIX}managed"
"""A label, and the name of Kueue's finalizer."""
RETRIABLE = f"{PREFIX}retriable-in-group"
FORCIBLE = f"{PREFIX}safe-to-forcefully-delete"
"""Annotation for a pod that is still terminating on an unreachable node and so holds the quota of its whole group.
Kueue may delete it with its gate `FailureRecoveryPolicy`. This is safe, because the syncer fences the old process."""
GATE = f"{PREFIX}admission"


def enqueue(pod: Object, spec: LearnerUnitSpec, group: str, size: int) -> None:
    """Make the pod one of `size` in this group, if the unit names a queue.

    Kueue's webhook would add the label `managed` and the gate. The operator sets them so that no pod runs without
    admission, even if the webhook excludes the namespace or Kueue is not installed yet. Only Kueue adds and removes its
    finalizer.
    """
    if spec.queue_name is None:
        return
    metadata = pod["metadata"]
    metadata["labels"] |= {LABEL_QUEUE: spec.queue_name, LABEL_POD_GROUP: group, MANAGED: "true"}
    if spec.queue_priority_class is not None:
        metadata["labels"][PRIORITY] = spec.queue_priority_class
    metadata["annotations"] |= {SIZE: str(size), RETRIABLE: "false", FORCIBLE: "true"}
    pod["spec"]["schedulingGates"] = [{"name": GATE}]
