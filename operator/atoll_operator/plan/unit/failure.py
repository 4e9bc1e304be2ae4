"""Why a pod of a unit failed, and what has to be done about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from atoll_operator.plan.pods.view import STOPPED, PodView
from atoll_runtime import contract

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
HANG = "Hang"
CAPACITY_UNAVAILABLE = "CapacityUnavailable"
RESTART_REQUESTED = "RestartRequested"
SUSPECT = "Suspect"
OF_HOSTS = frozenset({NODE_LOST, HOST_MAINTENANCE, ADMISSION_REJECTED, PREEMPTED, EVICTED, SUSPECT})
"""Reasons for which a pod cannot come back to its host."""
REASONS = OF_HOSTS | {
    *(APP_ERROR, OUT_OF_MEMORY, POD_DELETED, UNEXPECTED_EXIT, FENCED, STARTUP_TIMED_OUT, HANG),
    *(CAPACITY_UNAVAILABLE, RESTART_REQUESTED),
}
"""The operator's own reasons. Others are words of a run's image."""

_DISRUPTIONS = {
    "PreemptionByScheduler": PREEMPTED,
    "DeletionByTaintManager": NODE_LOST,
    "DeletionByPodGC": NODE_LOST,
    "EvictionByEvictionAPI": EVICTED,
    "TerminationByKubelet": HOST_MAINTENANCE,
    STOPPED: PREEMPTED,
}
_POD_REASONS = {
    **dict.fromkeys(("NodeAffinity", "NodePorts", "TaintToleration"), ADMISSION_REJECTED),
    **dict.fromkeys(("TopologyAffinityError", "UnexpectedAdmissionError"), ADMISSION_REJECTED),
    "Evicted": EVICTED,
    "NodeShutdown": HOST_MAINTENANCE,
    "Terminated": HOST_MAINTENANCE,
    "NodeLost": NODE_LOST,
    "Preempting": PREEMPTED,
}
SIGNALLED = 128
"""Exit statuses above it mean that a signal ended the process."""
_TERMINATION = re.compile(r"^([A-Z][A-Za-z0-9]{0,63}): ?(.*)$", re.DOTALL)


class Action(IntEnum):
    """What a slot needs. The greatest action of all slots is that of the unit."""

    SERVING = 0
    RESTART_PROCESS = 1
    """Another process in the same pod."""
    REPLACE_POD = 2
    """Another pod on the same host, or in the same node pool."""
    LEAVE_PLACE = 3
    """Other hosts for the whole unit."""


@dataclass(frozen=True, slots=True)
class Cause:
    reason: str
    message: str
    pod: str
    node: str = ""
    exit_code: int | None = None
    time: float | None = None
    """Unix seconds at which the container ended."""
    action: Action = Action.LEAVE_PLACE
    """The least that has to be done."""

    @property
    def text(self) -> str:
        """The text of an Event."""
        return f"{self.pod}: {self.message}" if self.pod else self.message


def classify(pod: PodView, incarnation: int) -> Cause | None:
    """Why the unit's current incarnation is lost with this pod, or None while it may still serve."""
    final = pod.exit_code in (contract.EXIT_FENCED, contract.EXIT_TERMINAL)
    if pod.leaves:
        reason, message = _reason(pod)
        leaves = (pod.ended and final) or pod.disruption or reason in OF_HOSTS
        action = Action.LEAVE_PLACE if leaves else Action.REPLACE_POD
    elif _crashed(pod, incarnation):
        reason, message = terminated(pod)
        # A container that names no incarnation ended before the learner's own code ran.
        action = Action.LEAVE_PLACE if final or pod.ended_incarnation is None else Action.RESTART_PROCESS
    else:
        return None
    return Cause(reason, message, pod.name, pod.node, pod.exit_code, pod.finished_at, action)


def _crashed(pod: PodView, incarnation: int) -> bool:
    """Whether the container's last end is an error of this incarnation; the kubelet starts it again."""
    if pod.exit_code is None or pod.exit_code in (contract.EXIT_OK, contract.EXIT_RESTART):
        return False
    return pod.ended_incarnation in (None, incarnation)


def terminated(pod: PodView) -> tuple[str, str]:
    """Reason and message of a container that ended with an error."""
    if pod.exit_code == contract.EXIT_FENCED:
        return FENCED, pod.exit_message or "a newer incarnation of this unit is registered with the syncer"
    match = _TERMINATION.match(pod.exit_message)
    if pod.exit_code == contract.EXIT_VERSION:
        return contract.VERSION_MISMATCH, match[2] if match is not None else pod.exit_message
    if match is not None:
        return match[1], match[2]
    if pod.exit_reason == "OOMKilled":
        return OUT_OF_MEMORY, "the container used more memory than its limit"
    number = (pod.exit_code or 0) - SIGNALLED
    if 0 < number < signal.NSIG:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return APP_ERROR, pod.exit_message or f"ended by {name}"
    return APP_ERROR, pod.exit_message or f"ended with exit status {pod.exit_code}"


def _reason(pod: PodView) -> tuple[str, str]:
    """Reason and message. The kubelet's own reason comes first: `TerminationByKubelet` may mean an eviction."""
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
    if pod.phase == "Succeeded" or pod.exit_code == contract.EXIT_OK:
        return UNEXPECTED_EXIT, "ended with exit status 0 before the run was finished"
    if pod.exit_code is None:
        return NODE_LOST, pod.message or f"failed without an exit status on node {node}"
    return terminated(pod)


def _of_host(pod: PodView, reason: str) -> str:
    """A preempted Spot host only knows that it shuts down, so its kubelet reports no preemption."""
    return PREEMPTED if reason == HOST_MAINTENANCE and pod.spot else reason


def most_specific(causes: Iterable[Cause]) -> Cause | None:
    """The most specific cause; of several, that of the pod that ended first, because its peers fail as a consequence. A
    pod that was deleted, is missing or ended by SIGTERM is less specific than one that ended by itself. A suspicion
    comes first, because it tells of the hosts, and a process that fails on them may be its consequence."""
    return min(causes, key=_specificity, default=None)


def _specificity(cause: Cause) -> tuple[bool, bool, bool, float, str]:
    stopped = cause.exit_code == SIGNALLED + signal.SIGTERM
    vague = cause.reason == POD_DELETED or (cause.reason == APP_ERROR and stopped)
    silent = cause.time is None and cause.reason == NODE_LOST
    return cause.reason != SUSPECT, vague, silent, cause.time or 0.0, cause.pod
