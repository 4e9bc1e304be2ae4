"""Which pods to delete, and when by force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atoll_operator.plan.clock import earliest
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.kueue import MANAGED

DRAIN_SECONDS = 60
"""From SIGTERM until a gang that is sound is killed: one that moves, is suspended, or whose unit is removed. It leaves
between two steps, its hosts together: a step of the largest models takes some seconds, and the links get 5 s to end."""
STUCK_SECONDS = 30.0
"""After its deletion time a pod is stuck: a kubelet that lives needs a few seconds."""
CLOCK_SECONDS = 10.0
"""By which the API server's clock may be ahead of ours."""
LOST_GRACE_SECONDS = 5
"""For a pod whose node may yet come back and hear that it is to go."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod to delete."""

    name: str
    uid: str
    grace_seconds: int
    finalizer: str = ""
    """Whose owner does not take it away, so that we do."""


def removals(
    pods: Iterable[PodView], grace: int, force: bool, now: float
) -> tuple[tuple[Removal, ...], float | None]:
    """Each pod once, once more where somebody else has given it longer than `grace`, and without any when it is stuck
    and `force` is wanted; when the next may be stuck.

    By force the object goes without a word from the kubelet: the scheduler then takes the chips of a node for free
    on which the process may still run. No heal waits for it in either case.
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
            # Kueue keeps a pod until a kubelet has said that it ended, and its quota with it.
            remove.append(Removal(pod.name, pod.uid, 0, MANAGED if pod.queue else ""))
        else:
            wake = earliest(wake, pod.deletion_time + STUCK_SECONDS)
    return tuple(remove), wake


def of_lost_nodes(
    pods: Iterable[PodView], nodes: Mapping[str, NodeView], seconds: float, force: bool, now: float
) -> tuple[tuple[Removal, ...], float | None]:
    """Pods of StatefulSets whose nodes say no more of them, and when to look again.

    Such a pod has no successor before its object is gone. It goes by force at once where its node is gone or out of
    service; where that is only silent, for longer than `seconds`, when it is stuck and `force` is wanted. A volume of
    one attachment keeps the successor from writing beside a process that still runs.
    """
    certain: list[Removal] = []
    silent: list[PodView] = []
    suspicion: float | None = None
    for pod in pods:
        node = nodes.get(pod.node)
        if node is None:
            continue
        if node.gone or node.out_of_service:
            certain.append(Removal(pod.name, pod.uid, 0))
        elif force and node.silent_since is not None:
            if node.silent_since + seconds <= now:
                silent.append(pod)
            else:
                suspicion = earliest(suspicion, node.silent_since + seconds)
    told, stuck = removals(silent, LOST_GRACE_SECONDS, True, now)
    return (*certain, *told), earliest(suspicion, stuck)
