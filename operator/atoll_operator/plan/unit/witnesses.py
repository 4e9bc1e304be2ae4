"""Failures that no single pod shows: deadlines of the unit, judged by the clock and the syncer's reports."""

from __future__ import annotations

from collections.abc import Sequence

from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import hang
from atoll_operator.plan.unit.failure import HANG, STARTUP_TIMED_OUT, Action, Cause
from atoll_operator.plan.unit.observed import Orders, UnitObserved
from atoll_operator.plan.unit.slots import Slot, renewed, restarted_at
from atoll_operator.plan.unit.waiting import in_creation

RENEWAL_SECONDS = 90.0
"""Time from a restart until the last incarnation's processes and pods must have ended. A kubelet sees a pod's change at
once, and checks each pod every 60 to 90 s. A process that is stopped, or hangs in the kernel, does not end itself."""
AGAIN_SECONDS = 2.0
"""Time until the next check for an answer of the syncer, which is polled every 15 s in a large run."""
Finding = tuple[Cause | None, float | None]
"""Why the incarnation is lost, or else when to check again."""


def overdue(unit: UnitObserved, orders: Orders, slots: Sequence[Slot], now: float) -> Finding:
    """Whether a deadline has passed: to have restarted, to be connected to the syncer, and then to step."""
    pods = [slot.pod for slot in slots if slot.pod is not None]
    if not pods:
        return None, None
    if slots[0].met:
        return _hangs(unit, orders, pods, now)
    if (since := restarted_at(unit)) is not None:
        behind = [pod for pod in pods if _is_behind(unit, pod)]
        if behind:
            when = f"{RENEWAL_SECONDS:.0f} s after the order to restart"
            message = f"the last incarnation is still there {when}"
            cause = Cause(STARTUP_TIMED_OUT, message, behind[0].name, behind[0].node)
            return _due(since + RENEWAL_SECONDS, cause, now)
    if len(pods) < len(slots):  # the API server may refuse them
        return None, None
    new = [pod for pod in pods if since is None or pod.made_for == unit.status.incarnation]
    if late := [pod for pod in new if pod.started_at is None]:
        return _not_started(late, len(slots), orders, now)
    return _not_connected(unit, orders, pods, since, now)


def _is_behind(unit: UnitObserved, pod: PodView) -> bool:
    """Whether the pod still belongs to the last incarnation."""
    if pod.made_for == unit.status.incarnation or pod.ended:
        return False
    return pod.leaves or not renewed(unit, pod)


def _not_started(late: Sequence[PodView], hosts: int, orders: Orders, now: float) -> Finding:
    """Leave a host that cannot start a container while its peers can. If none can, the hosts are not the reason, and
    `waiting.creating` reports it."""
    times = [pod.scheduled_at for pod in late if pod.scheduled_at is not None and in_creation(pod)]
    if len(times) < len(late):
        return None, None
    seconds = orders.recovery.startup_seconds
    moment = max(times) + seconds
    if moment > now:
        return None, moment
    if len(late) == hosts:
        return None, None
    first = late[0]
    message = f"its container has not started {seconds} s after it got its node; others have"
    return Cause(STARTUP_TIMED_OUT, message, first.name, first.node), None


def _not_connected(
    unit: UnitObserved, orders: Orders, pods: Sequence[PodView], since: float | None, now: float
) -> Finding:
    """The time to connect runs while all pods have started and the syncer answers.

    A restarted pod has started once: a kubelet that holds its container back gets no longer than that.
    """
    begun = [unit.answering_since, *(pod.started_at or since for pod in pods)]
    moments = [moment for moment in begun if moment is not None]
    if len(moments) < len(begun):
        return None, None
    seconds = orders.recovery.startup_seconds
    after = "the pods started" if since is None else "the order to restart"
    message = f"not all hosts were connected to the syncer {seconds} s after {after}"
    action = Action.RESTART_PROCESS if since is None else Action.LEAVE_PLACE
    cause = Cause(STARTUP_TIMED_OUT, message, pods[0].name, pods[0].node, action=action)
    return _told(unit, max(*moments, since or 0.0) + seconds, cause, now)


def _hangs(unit: UnitObserved, orders: Orders, pods: Sequence[PodView], now: float) -> Finding:
    pace, deadline = unit.pace, hang.deadline(unit.pace, unit.status.incarnation, orders.recovery)
    if deadline is None or pace is None or any(pod.started_at is None for pod in pods):
        return None, None
    since = f"after inner step {pace.step}" if pace.stepped else "since the hosts were connected"
    alone = unit.report is not None and unit.report.state == "Gone"
    message = f"no step has ended for {deadline - pace.since:.0f} s, {since}, while the pods run"
    message += "; no host is connected to the syncer" if alone else ""
    cause = Cause(HANG, message, pods[0].name, pods[0].node, action=Action.RESTART_PROCESS)
    return _told(unit, deadline, cause, now)


def _told(unit: UnitObserved, moment: float, cause: Cause, now: float) -> Finding:
    """A deadline that is judged by the syncer's reports. A report from before the deadline proves nothing."""
    if moment <= now and unit.heard is not None and unit.heard < moment:
        return None, now + AGAIN_SECONDS
    return _due(moment, cause, now)


def _due(moment: float, cause: Cause, now: float) -> Finding:
    return (None, moment) if moment > now else (cause, None)
