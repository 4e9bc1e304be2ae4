"""Why pods do not run yet although nothing failed: reasons of the conditions `Scheduled` and `PodsReady`."""

from __future__ import annotations

import math
import re

from atoll_operator.api.group import KUEUE
from atoll_operator.plan.pods.view import Pods, PodView
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE, terminated

QUEUED = "Queued"
"""Pods wait for admission by a queue of Kueue."""
GATED = "SchedulingGated"
"""Another scheduling gate holds a pod. Kubernetes uses the same word."""
IMAGE_PULL = "ImagePull"
CONTAINER_CREATING = "ContainerCreating"
HOLDS = frozenset(
    {CAPACITY_UNAVAILABLE, QUEUED, IMAGE_PULL, CONTAINER_CREATING, "ObjectRefused", "SpecInvalid"}
)
"""Reasons for which a unit waits until somebody acts."""
_CREATION = (CONTAINER_CREATING, "PodInitializing")
_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")


def waiting(pods: Pods, seconds: float, now: float) -> tuple[str, str] | None:
    """Reason and message if something keeps a pod from starting. A kubelet may take `seconds` to start a container;
    after that a volume or a sandbox may have failed."""
    if gated := [pod for pod in pods if pod.gates]:
        return _gated(gated, len(pods))
    for pod in pods:
        if pod.unschedulable:
            return CAPACITY_UNAVAILABLE, f"{pod.name}: {pod.unschedulable}"
    stopped = [pod for pod in pods if pod.waiting and pod.waiting not in _CREATION]
    for pod in sorted(stopped, key=lambda pod: pod.waiting not in _IMAGE):
        message = f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
        if pod.waiting in _IMAGE:
            return IMAGE_PULL, message
        return re.sub(r"[^A-Za-z0-9]", "", pod.waiting) or "Waiting", message
    for pod in pods:
        if in_creation(pod) and pod.scheduled_at is not None and pod.scheduled_at + seconds <= now:
            message = f"not started {seconds:g} s after it got node {pod.node}; the pod's Events say why"
            return CONTAINER_CREATING, f"{pod.name}: {message}"
    return None


def _gated(gated: Pods, pods: int) -> tuple[str, str]:
    first, count = gated[0], f"{len(gated)} of {pods} pods"
    others = sorted({gate for pod in gated for gate in pod.gates if not gate.startswith(KUEUE)})
    if others:
        return GATED, f"{count} wait for the scheduling gates {', '.join(others)} to be taken away"
    why = f"`kubectl describe workload {first.group}` says why"
    return QUEUED, f"{count} wait for admission by queue {first.queue}; {why}"


def in_creation(pod: PodView) -> bool:
    """The pod has a node, and its kubelet reports no problem but has not started the container."""
    return bool(pod.node) and not pod.ended and pod.started_at is None and pod.waiting in ("", *_CREATION)


def hindrance(pod: PodView) -> str:
    """What keeps a pod of a StatefulSet from running, in words; empty when nothing is known to be wrong."""
    if pod.started_at is not None:  # an earlier end does not matter any more
        return ""
    if pod.exit_code:
        reason, message = terminated(pod)
        return f"{pod.name} ended: {reason}: {message}"
    _, message = waiting([pod], math.inf, 0.0) or ("", "")
    return message


def hindrances(name: str, replicas: int, pods: Pods) -> str:
    """What keeps `replicas` pods of a StatefulSet from running, including pods that its controller has not created. If
    a quota or a webhook refuses these, the controller reports it in Events only."""
    there = {pod.name for pod in pods}
    missing = [f"{name}-{ordinal}" for ordinal in range(replicas) if f"{name}-{ordinal}" not in there]
    absent = f"no pod {', '.join(missing)}: see kubectl describe statefulset {name}" if missing else ""
    return "; ".join(filter(None, (*map(hindrance, pods), absent)))
