"""Which pods to delete, and when by force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atoll_operator.plan.clock import earliest
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.kueue import MANAGED

DRAIN_SECONDS = 60
"""Time from SIGTERM to SIGKILL for healthy pods: of a unit that moves, is suspended or removed. All hosts end together
between two steps. A step of the largest models takes some seconds, and the links get 5 s to end."""
STUCK_SECONDS = 30.0
"""How long after its deletion time a pod counts as stuck. A live kubelet needs a few seconds."""
CLOCK_SECONDS = 10.0
"""How far the API server's clock may be ahead of the operator's."""
LOST_GRACE_SECONDS = 5
"""Grace period for a pod whose node may come back and learn of the deletion."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod to delete."""

    name: str
    uid: str
    grace_seconds: int
    finalizer: str = ""
    """A finalizer that the operator removes, because its owner does not."""


def removals(
    pods: Iterable[PodView], grace: int, force: bool, now: float
) -> tuple[tuple[Removal, ...], float | None]:
    """The pods to delete now, and when the next one may be stuck.

    Each pod is deleted once, again if another deletion gave it longer than `grace`, and without a grace period if it is
    stuck and `force` is set. A forced deletion does not wait for the kubelet: the scheduler then considers the chips
    free although the process may still run. No heal waits for such a pod in either case.
    """
    remove: list[Removal] = []
    wake: float | None = None
    for pod in pods:
        patient = not pod.ended and (pod.deletion_time or 0.0) > now + grace + CLOCK_SECONDS
        if pod.deletion_time is None or patient:
            remove.append(Removal(pod.name, pod.uid, 0 if pod.ended else grace))
            wake = earliest(wake, now + grace + STUCK_SECONDS if force else None)
        elif not force:
            continue
        elif pod.deletion_time + STUCK_SECONDS <= now:
            # Kueue keeps a pod and its quota until a kubelet has reported that it ended.
            remove.append(Removal(pod.name, pod.uid, 0, MANAGED if pod.queue else ""))
        else:
            wake = earliest(wake, pod.deletion_time + STUCK_SECONDS)
    return tuple(remove), wake


def of_lost_nodes(
    pods: Iterable[PodView], nodes: Mapping[str, NodeView], seconds: float, force: bool, now: float
) -> tuple[tuple[Removal, ...], float | None]:
    """Pods of StatefulSets on lost nodes that are to be deleted by force, and when to check again.

    Such a pod has no successor before its object is deleted. It is deleted at once if its node is deleted or out of
    service. If the node is only silent for longer than `seconds`, it is deleted when it is stuck and `force` is set. A
    volume with a single attachment keeps the successor from writing beside a process that still runs.
    """
    certain: list[Removal] = []
    silent: list[PodView] = []
    suspicion: float | None = None
    for pod in pods:
        node = nodes.get(pod.node)
        if node is None:
            continue
        if node.off:
            certain.append(Removal(pod.name, pod.uid, 0))
        elif force and node.silent_since is not None:
            if node.silent_since + seconds <= now:
                silent.append(pod)
            else:
                suspicion = earliest(suspicion, node.silent_since + seconds)
    told, stuck = removals(silent, LOST_GRACE_SECONDS, True, now)
    return (*certain, *told), earliest(suspicion, stuck)
