"""Whether the current gang of a unit is lost, by all witnesses: its pods, their nodes, and the syncer."""

from __future__ import annotations

from collections.abc import Mapping

from atoll_operator.plan import failure, hang, nodes
from atoll_operator.plan.clock import earliest
from atoll_operator.plan.conditions import is_true
from atoll_operator.plan.failure import Cause
from atoll_operator.plan.observe import PodView
from atoll_operator.plan.unitstatus import Orders, UnitObserved

EXIT_GRACE_SECONDS = 15.0
"""A pod that ends with 0 may have heard of the run's end before we did."""


def find_loss(
    unit: UnitObserved, orders: Orders, current: Mapping[str, PodView], missing: tuple[str, ...], now: float
) -> tuple[Cause | None, float | None]:
    """Why the current gang is lost, and when to look again."""
    if orders.finishing:
        return None, None
    pods, wake = [], None
    for pod in current.values():
        patient = (pod.finished_at or now) + EXIT_GRACE_SECONDS
        if pod.exit_code == 0 and pod.ended and pod.deletion_time is None and patient > now:
            wake = earliest(wake, patient)
        else:
            pods.append(pod)
    silent, suspicion = nodes.lost(pods, unit.nodes, orders.recovery.node_lost_seconds, now)
    last = [unit.departed[name] for name in missing if name in unit.departed]
    told = [pod for pod in last if failure.classify(pod) is not None]
    mute = set(missing) - {pod.name for pod in told}
    cause = failure.first_cause([*pods, *told], sorted(mute), silent)
    if cause is not None:
        return cause, None
    overdue, deadline = _overdue(unit, orders, current, now)
    return overdue, None if overdue is not None else earliest(wake, suspicion, deadline)


def _overdue(
    unit: UnitObserved, orders: Orders, current: Mapping[str, PodView], now: float
) -> tuple[Cause | None, float | None]:
    """The gang's own deadlines: to be connected, and then to step."""
    connecting = _startup_deadline(unit, orders, current)
    if connecting is not None:
        seconds = orders.recovery.startup_seconds
        message = f"not all hosts were connected to the syncer {seconds} s after the pods started"
        return _due(connecting, failure.STARTUP_TIMED_OUT, message, current, now)
    stepping = hang.deadline(unit.pace, unit.status.incarnation, orders.recovery)
    if (
        stepping is None
        or unit.pace is None
        or not current
        or any(pod.started_at is None for pod in current.values())
    ):
        return None, None
    ended = f"after inner step {unit.pace.step}" if unit.pace.stepped else "since the hosts were connected"
    gone = unit.report is not None and unit.report.state == "Gone"
    message = f"no step has ended for {stepping - unit.pace.since:.0f} s, {ended}, while the pods run" + (
        "; no host is connected to the syncer" if gone else ""
    )
    return _due(stepping, failure.HANG, message, current, now)


def _due(
    moment: float, reason: str, message: str, current: Mapping[str, PodView], now: float
) -> tuple[Cause | None, float | None]:
    if moment > now:
        return None, moment
    first = current[min(current)]
    return Cause(reason, message, first.name, first.node), None


def _startup_deadline(unit: UnitObserved, orders: Orders, current: Mapping[str, PodView]) -> float | None:
    """None while pods have yet to start, while the syncer does not answer, and once all hosts were connected."""
    started = [pod.started_at for pod in current.values()]
    if unit.answering_since is None or not started or any(moment is None for moment in started):
        return None
    report = unit.report
    if is_true(unit.status.conditions, "Seeded") or (
        report is not None and report.incarnation == unit.status.incarnation and report.hosts >= len(current)
    ):
        return None
    return (
        max(unit.answering_since, *(moment for moment in started if moment)) + orders.recovery.startup_seconds
    )
