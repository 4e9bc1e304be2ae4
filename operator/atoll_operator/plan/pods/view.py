"""The view of a pod that plans read, and which pods to delete, and when by force."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atoll_operator.api import group
from atoll_operator.api.group import Object
from atoll_operator.plan.conditions import earliest, parse_time
from atoll_operator.plan.pods.template import CONTAINER
from atoll_runtime.contract import LastWords

STUCK_SECONDS = 30.0
"""How long after its deletion time a pod counts as stuck. A live kubelet needs a few seconds."""
_NUMBER = re.compile("[0-9]{1,18}", re.ASCII)
STOPPED = "TerminationTarget"
"""Kueue's condition on a pod whose admission it takes back. Its reason may be anything; its message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """The relevant fields of one pod. Times are Unix seconds."""

    name: str
    uid: str = ""
    placement: int = 0
    incarnation: int = 0
    """The incarnation in its annotation. Its process has it, or has to restart for it."""
    made_for: int = 0
    """The incarnation for which the pod was created; it is part of the pod's name."""
    host: int = 0
    contract: str = ""
    """Hash of the run's pod settings when the pod was created."""
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    pool: str = ""
    """The node pool in its node selector."""
    spot: bool = False
    """Its node is a Spot node: a shutdown of the node is a preemption."""
    deletion_time: float | None = None
    """Its deletionTimestamp: when it should be gone."""
    grace_seconds: int = 0
    """The grace period of its deletion."""
    disruption: str = ""
    """Reason of the condition `DisruptionTarget`, or `STOPPED` if that condition is there."""
    gates: tuple[str, ...] = ()
    """Scheduling gates; the scheduler ignores a pod that has any."""
    queue: str = ""
    """Kueue's queue, and the pod's group in it."""
    group: str = ""
    unschedulable: str = ""
    unschedulable_since: float | None = None
    scheduled_at: float | None = None
    waiting: str = ""
    """Why the container does not start, such as `ImagePullBackOff`."""
    waiting_message: str = ""
    ready: bool = False
    started_at: float | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    """The termination message, without the incarnation at its start."""
    ended_incarnation: int | None = None
    """The incarnation that ended, if the termination message names one."""
    finished_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ("Failed", "Succeeded")

    @property
    def leaves(self) -> bool:
        """It has ended or is being deleted: no process starts in it any more."""
        return self.ended or self.deletion_time is not None

    def missed(self, incarnation: int) -> bool:
        """Whether no process of this incarnation has run in this pod or can still run there."""
        if self.incarnation < incarnation:
            return True  # its annotation is older
        restarted = not self.ended and self.ended_incarnation == incarnation - 1
        return self.made_for < incarnation and self.ended_incarnation != incarnation and not restarted


Pods = Sequence[PodView]


def view(pod: Object) -> PodView:
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    selector = spec.get("nodeSelector", {})
    conditions = {item["type"]: item for item in status.get("conditions", [])}
    names = ("DisruptionTarget", STOPPED, "PodScheduled")
    disruption, stopped, scheduled = (conditions.get(name, {}) for name in names)
    placed = _time(scheduled.get("lastTransitionTime"))
    unplaced = scheduled.get("reason") == "Unschedulable"
    containers = status.get("containerStatuses", [])
    container: Object = next((item for item in containers if item.get("name") == CONTAINER), {})
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated") or {}
    waiting = state.get("waiting", {})
    words = LastWords.parse(ended.get("message", ""))
    disrupted = disruption.get("reason", "") if disruption.get("status") == "True" else ""
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        placement=_number(labels.get(group.LABEL_PLACEMENT)),
        incarnation=_number(annotations.get(group.ANNOTATION_INCARNATION)),
        made_for=_number(metadata["name"].rpartition("-")[0].rpartition("-")[2]),
        host=_number(labels.get(group.LABEL_HOST)),
        contract=annotations.get(group.ANNOTATION_CONTRACT, ""),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", "") or stopped.get("message", ""),
        node=spec.get("nodeName", ""),
        pool=selector.get(group.NODE_POOL, ""),
        spot=selector.get(group.SPOT) == "true",
        deletion_time=_time(metadata.get("deletionTimestamp")),
        grace_seconds=metadata.get("deletionGracePeriodSeconds") or 0,
        disruption=disrupted or (STOPPED if stopped else ""),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates", ())),
        queue=labels.get(group.LABEL_QUEUE, ""),
        group=labels.get(group.LABEL_POD_GROUP, ""),
        unschedulable=scheduled.get("message", "no node fits") if unplaced else "",
        unschedulable_since=placed if unplaced else None,
        scheduled_at=placed if scheduled.get("status") == "True" else None,
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        started_at=_time(state.get("running", {}).get("startedAt")),
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason", ""),
        exit_message=words.text,
        ended_incarnation=words.incarnation,
        finished_at=_time(ended.get("finishedAt")),
    )


def _number(text: str | None) -> int:
    """The number in a label or annotation, which anyone may have written; 0 if there is none."""
    return int(text) if text and _NUMBER.fullmatch(text) else 0


def _time(text: str | None) -> float | None:
    return parse_time(text) if text else None


@dataclass(frozen=True, slots=True)
class Removal:
    name: str
    uid: str
    grace_seconds: int
    finalizer: str = ""
    """A finalizer that the operator removes, because its owner does not."""


def removals(
    pods: Iterable[PodView], grace: int, force: bool, now: float
) -> tuple[tuple[Removal, ...], float | None]:
    """The pods to delete now, and when the next one may be stuck. Each pod is deleted once, again if another deletion
    gave it longer than `grace`, and without a grace period if it is stuck and `force` is set. A forced deletion does
    not wait for the kubelet: the scheduler then considers the chips free although the process may still run. No heal
    waits for such a pod in either case."""
    remove: list[Removal] = []
    wake: float | None = None
    for pod in pods:
        if pod.deletion_time is None or (not pod.ended and pod.grace_seconds > grace):
            remove.append(Removal(pod.name, pod.uid, 0 if pod.ended else grace))
            wake = earliest(wake, now + grace + STUCK_SECONDS if force else None)
        elif not force:
            continue
        elif pod.deletion_time + STUCK_SECONDS <= now:
            # Kueue keeps a pod and its quota until a kubelet has reported that it ended.
            remove.append(Removal(pod.name, pod.uid, 0, group.KUEUE_MANAGED if pod.queue else ""))
        else:
            wake = earliest(wake, pod.deletion_time + STUCK_SECONDS)
    return tuple(remove), wake
