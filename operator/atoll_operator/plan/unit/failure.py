"""Why a gang failed: one reason, from the pods as they are."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from atoll_operator.plan.pods.view import STOPPED, PodView
from atoll_operator.plan.unit import kueue
from atoll_runtime.contract import (
    EXIT_FENCED,
    EXIT_OK,
    EXIT_RESTART,
    EXIT_TERMINAL,
    EXIT_VERSION,
    VERSION_MISMATCH,
)

APP_ERROR = "AppError"
OUT_OF_MEMORY = "OutOfMemory"
PREEMPTED = "Preempted"
EVICTED = "Evicted"
NODE_LOST = "NodeLost"
HOST_MAINTENANCE = "HostMaintenance"
ADMISSION_REJECTED = "AdmissionRejected"
POD_DELETED = "PodDeleted"
UNEXPECTED_EXIT = "UnexpectedExit"
FENCED = "Fenced"
STARTUP_TIMED_OUT = "StartupTimedOut"
CONTAINER_CREATING = "ContainerCreating"
_CREATION = (CONTAINER_CREATING, "PodInitializing")
HANG = "Hang"
IMAGE_PULL = "ImagePull"
CAPACITY_UNAVAILABLE = "CapacityUnavailable"
PLACE_IS_LOST = frozenset(
    {NODE_LOST, HOST_MAINTENANCE, ADMISSION_REJECTED, PREEMPTED, EVICTED, CAPACITY_UNAVAILABLE}
)
"""Where a pod was lost for one of these, the next one should not look for its host."""

_DISRUPTIONS = {
    "PreemptionByScheduler": PREEMPTED,
    "DeletionByTaintManager": NODE_LOST,
    "DeletionByPodGC": NODE_LOST,
    "EvictionByEvictionAPI": EVICTED,
    "TerminationByKubelet": HOST_MAINTENANCE,
    STOPPED: PREEMPTED,
}
_POD_REASONS = {
    "UnexpectedAdmissionError": ADMISSION_REJECTED,
    "NodeAffinity": ADMISSION_REJECTED,
    "NodePorts": ADMISSION_REJECTED,
    "TaintToleration": ADMISSION_REJECTED,
    "TopologyAffinityError": ADMISSION_REJECTED,
    "Evicted": EVICTED,
    "NodeShutdown": HOST_MAINTENANCE,
    "Terminated": HOST_MAINTENANCE,
    "NodeLost": NODE_LOST,
    "Preempting": PREEMPTED,
}
_FINAL = (EXIT_FENCED, EXIT_TERMINAL)
SIGNALLED = 128
"""Exit statuses above it name a signal."""
_TERMINATION = re.compile(r"^([A-Z][A-Za-z0-9]{0,63}): ?(.*)$", re.DOTALL)
_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")


class Scope(IntEnum):
    """What has to be made anew, as far as one witness knows."""

    PROCESS = 0
    """Another process may do better in the same pod."""
    POD = 1
    """Another pod may do better on the same host."""
    GANG = 2


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one pod, and with it the incarnation, is lost."""

    reason: str
    message: str
    pod: str
    node: str = ""
    exit_code: int | None = None
    time: float | None = None
    """Unix seconds at which the container ended."""
    scope: Scope = Scope.GANG


def classify(pod: PodView, incarnation: int) -> Cause | None:
    """Why the unit's current incarnation is lost with this pod, or None while it may still serve."""
    if pod.ended or pod.deletion_time is not None:
        reason, message = _reason(pod)
        final = pod.ended and pod.exit_code in _FINAL
        scope = Scope.GANG if final or pod.disruption or reason in PLACE_IS_LOST else Scope.POD
        return Cause(reason, message, pod.name, pod.node, pod.exit_code, pod.finished_at, scope)
    if not _crashed(pod, incarnation):
        return None
    reason, message = (FENCED, _fenced(pod)) if pod.exit_code == EXIT_FENCED else terminated(pod)
    alone = pod.ended_incarnation is not None and pod.exit_code not in _FINAL
    scope = Scope.PROCESS if alone else Scope.GANG
    return Cause(reason, message, pod.name, pod.node, pod.exit_code, pod.finished_at, scope)


def _crashed(pod: PodView, incarnation: int) -> bool:
    """Whether a container ended that its kubelet starts again, and with it this incarnation.

    One that names no incarnation ended before the learner's own code ran, and may do so again.
    """
    if pod.exit_code is None or pod.exit_code in (EXIT_OK, EXIT_RESTART):
        return False
    return pod.ended_incarnation in (None, incarnation)


def terminated(pod: PodView) -> tuple[str, str]:
    """Reason and message of a container that ended with an error."""
    match = _TERMINATION.match(pod.exit_message)
    if pod.exit_code == EXIT_VERSION:
        return VERSION_MISMATCH, match[2] if match is not None else pod.exit_message
    if match is not None:
        return match[1], match[2]
    if pod.exit_reason == "OOMKilled":
        return OUT_OF_MEMORY, "the container used more memory than its limit"
    if pod.exit_code is not None and 0 < pod.exit_code - SIGNALLED < signal.NSIG:
        return APP_ERROR, pod.exit_message or f"ended by {_signal(pod.exit_code - SIGNALLED)}"
    return APP_ERROR, pod.exit_message or f"ended with exit status {pod.exit_code}"


def hindrance(pod: PodView) -> str:
    """Why a pod of a StatefulSet does not run, in words; empty when nothing is known to be wrong."""
    if pod.started_at is not None:  # how it ended before is over
        return ""
    if pod.unschedulable:
        return f"{pod.name}: {pod.unschedulable}"
    if pod.exit_code:
        reason, message = terminated(pod)
        return f"{pod.name} ended: {reason}: {message}"
    if pod.waiting and pod.waiting not in _CREATION:
        return f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
    return ""


def hindrances(name: str, replicas: int, pods: Sequence[PodView]) -> str:
    """What keeps pods of a StatefulSet from running: their own words, and which of them its controller has not made.

    Its controller tells of a quota, or of a webhook that refuses its pods, in events alone.

    Args:
        replicas: of them it should have made by now.
    """
    there = {pod.name for pod in pods}
    missing = [f"{name}-{ordinal}" for ordinal in range(replicas) if f"{name}-{ordinal}" not in there]
    absent = f"no pod {', '.join(missing)}: see kubectl describe statefulset {name}" if missing else ""
    return "; ".join(filter(None, (*map(hindrance, pods), absent)))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reason(pod: PodView) -> tuple[str, str]:
    """The kubelet's own word first: it marks evictions and shutdowns alike as `TerminationByKubelet`."""
    node = pod.node or "unknown"
    if pod.ended and pod.reason in _POD_REASONS:
        return _of_host(pod, _POD_REASONS[pod.reason]), pod.message or pod.reason
    if pod.ended and pod.reason.startswith("OutOf"):
        return ADMISSION_REJECTED, pod.message or pod.reason
    if pod.disruption in _DISRUPTIONS:
        reason = _of_host(pod, _DISRUPTIONS[pod.disruption])
        return reason, pod.message or f"{pod.disruption} on node {node}"
    if not pod.ended:
        return POD_DELETED, f"deleted while it ran on node {pod.node or 'none'}"
    if pod.exit_code == EXIT_FENCED:
        return FENCED, _fenced(pod)
    if pod.phase == "Succeeded" or pod.exit_code == EXIT_OK:
        return UNEXPECTED_EXIT, "ended with exit status 0 before the run was finished"
    if pod.exit_code is None:
        return NODE_LOST, pod.message or f"failed without an exit status on node {node}"
    return terminated(pod)


def _of_host(pod: PodView, reason: str) -> str:
    """A Spot host is told to shut down when it is preempted, and its kubelet knows no more than that."""
    return PREEMPTED if reason == HOST_MAINTENANCE and pod.spot else reason


def _fenced(pod: PodView) -> str:
    return pod.exit_message or "a newer incarnation of this unit is registered with the syncer"


def first_cause(
    pods: Sequence[PodView], incarnation: int, missing: Sequence[str], lost: Sequence[Cause] = ()
) -> Cause | None:
    """The cause of a gang's loss: the pod that ended first, because its peers fail for want of it.

    Pods that are merely deleted or missing explain less than pods that ended, and so do those that were told to end.

    Args:
        lost: what other witnesses say.
    """
    causes = [*lost, *(cause for cause in (classify(pod, incarnation) for pod in pods) if cause is not None)]
    causes += [Cause(POD_DELETED, "does not exist any more", name, scope=Scope.POD) for name in missing]
    return min(causes, key=_telling, default=None)


def _telling(cause: Cause) -> tuple[bool, bool, float, str]:
    vague = cause.reason == POD_DELETED or (
        cause.reason == APP_ERROR and cause.exit_code == SIGNALLED + signal.SIGTERM
    )
    silent = cause.time is None and cause.reason == NODE_LOST
    return vague, silent, cause.time or 0.0, cause.pod


def waiting(pods: Sequence[PodView]) -> tuple[str, str] | None:
    """Why a gang does not start, where that is no failure: a queue, no capacity, an image that cannot be had."""
    if (gated := kueue.held(pods)) is not None:
        return gated
    for pod in pods:
        if pod.unschedulable:
            return CAPACITY_UNAVAILABLE, f"{pod.name}: {pod.unschedulable}"
    for pod in pods:
        if pod.waiting in _IMAGE:
            return IMAGE_PULL, f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
    for pod in pods:
        if pod.waiting and pod.waiting not in _CREATION:
            return re.sub(r"[^A-Za-z0-9]", "", pod.waiting) or "Waiting", f"{pod.name}: {pod.waiting_message}"
    return None


def in_creation(pod: PodView) -> bool:
    """It has a node, and its kubelet says no more than that it is at it."""
    return bool(pod.node) and not pod.ended and pod.started_at is None and pod.waiting in ("", *_CREATION)


def creating(pods: Sequence[PodView], seconds: float, now: float) -> tuple[str, str] | None:
    """A container that its kubelet has not started for longer than `seconds`: a volume or a sandbox fails there."""
    for pod in pods:
        if in_creation(pod) and pod.scheduled_at is not None and pod.scheduled_at + seconds <= now:
            message = f"not started {seconds:g} s after it got node {pod.node}; the pod's Events say why"
            return CONTAINER_CREATING, f"{pod.name}: {message}"
    return None
