"""A pod as the plans see it."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.api.group import LABEL_HOST, LABEL_INCARNATION, LABEL_UNIT, Object
from atoll_operator.plan.clock import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What matters of one pod. Times are Unix seconds."""

    name: str
    uid: str = ""
    unit: str = ""
    incarnation: int = 0
    host: int = 0
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    deletion_time: float | None = None
    """When it should be gone; set as soon as somebody deletes it."""
    disruption: str = ""
    """Reason of the condition `DisruptionTarget`."""
    unschedulable: str = ""
    """The scheduler's message."""
    waiting: str = ""
    """Why the container does not start, such as `ImagePullBackOff`."""
    waiting_message: str = ""
    ready: bool = False
    started_at: float | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    """The termination message."""
    finished_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ("Failed", "Succeeded")


def view(pod: Object) -> PodView:
    """From the API's JSON."""
    metadata = pod["metadata"]
    labels = metadata.get("labels", {})
    status = pod.get("status", {})
    conditions = {item["type"]: item for item in status.get("conditions", [])}
    disruption = conditions.get("DisruptionTarget", {})
    scheduled = conditions.get("PodScheduled", {})
    container: Object = next(iter(status.get("containerStatuses", [])), {})
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated") or {}
    waiting = state.get("waiting", {})
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        unit=labels.get(LABEL_UNIT, ""),
        incarnation=_number(labels.get(LABEL_INCARNATION)),
        host=_number(labels.get(LABEL_HOST)),
        phase=status.get("phase", "Pending"),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        node=pod.get("spec", {}).get("nodeName", ""),
        deletion_time=_time(metadata.get("deletionTimestamp")),
        disruption=disruption.get("reason", "") if disruption.get("status") == "True" else "",
        unschedulable=scheduled.get("message", "no node fits")
        if scheduled.get("reason") == "Unschedulable"
        else "",
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        started_at=_time(state.get("running", {}).get("startedAt")),
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason", ""),
        exit_message=ended.get("message", "").strip(),
        finished_at=_time(ended.get("finishedAt")),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _time(text: str | None) -> float | None:
    return parse_time(text) if text else None
