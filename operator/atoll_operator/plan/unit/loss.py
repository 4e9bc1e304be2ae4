"""Whether the current gang of a unit is lost, by all witnesses: its pods, their nodes, and the syncer."""

from __future__ import annotations

from atoll_operator.plan import nodes
from atoll_operator.plan.clock import earliest
from atoll_operator.plan.pods.names import pod_name
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import failure, hang, remedy
from atoll_operator.plan.unit.failure import Cause, Scope
from atoll_operator.plan.unit.muster import Muster
from atoll_operator.plan.unit.status import Orders, UnitObserved, connected

EXIT_GRACE_SECONDS = 15.0
"""A pod that ends with 0 may have heard of the run's end before we did."""
AGAIN_SECONDS = 2.0
"""Until the next look for an answer of the syncer: of a large run it is asked every 15 s."""


def find_loss(
    unit: UnitObserved, orders: Orders, gang: Muster, now: float
) -> tuple[Cause | None, float | None]:
    """Why the current incarnation is lost, and when to look again."""
    if orders.finishing:
        return None, None
    pods, wake = [], None
    for pod in gang.pods.values():
        patient = (pod.finished_at or now) + EXIT_GRACE_SECONDS
        if pod.exit_code == 0 and pod.ended and pod.deletion_time is None and patient > now:
            wake = earliest(wake, patient)
        else:
            pods.append(nodes.told_by_host(pod, unit.nodes))
    stepped = hang.stepped(unit.pace, unit.status.incarnation)
    silent, suspicion = nodes.lost(pods, unit.nodes, orders.recovery.node_lost_seconds, now, stepped)
    last = [
        nodes.told_by_host(gang.departed[host], unit.nodes) for host in gang.lost if host in gang.departed
    ]
    told = [pod for pod in last if failure.classify(pod, unit.status.incarnation) is not None]
    mute = set(gang.lost) - {pod.host for pod in told}
    names = [_name(unit, gang, host) for host in sorted(mute)]
    cause = failure.first_cause([*pods, *told], unit.status.incarnation, names, silent)
    if cause is not None:
        return cause, None
    overdue, deadline = _overdue(unit, orders, gang, now)
    return overdue, None if overdue is not None else earliest(wake, suspicion, deadline)


def _name(unit: UnitObserved, gang: Muster, host: int) -> str:
    """Of a pod that is not there; as its gang's were called at first where it was never seen."""
    known = gang.departed.get(host)
    return known.name if known is not None else pod_name(unit.name, unit.status.gang, host)


def _overdue(
    unit: UnitObserved, orders: Orders, gang: Muster, now: float
) -> tuple[Cause | None, float | None]:
    """The gang's own deadlines: to have restarted, to be connected, and then to step."""
    if not gang.pods:
        return None, None
    if not connected(unit, gang.hosts):
        return _disconnected(unit, orders, gang, now)
    stepping = hang.deadline(unit.pace, unit.status.incarnation, orders.recovery)
    if stepping is None or unit.pace is None or any(pod.started_at is None for pod in gang.pods.values()):
        return None, None
    ended = f"after inner step {unit.pace.step}" if unit.pace.stepped else "since the hosts were connected"
    gone = unit.report is not None and unit.report.state == "Gone"
    message = f"no step has ended for {stepping - unit.pace.since:.0f} s, {ended}, while the pods run" + (
        "; no host is connected to the syncer" if gone else ""
    )
    first = gang.pods[min(gang.pods)]
    return _told(
        unit, stepping, Cause(failure.HANG, message, first.name, first.node, scope=Scope.PROCESS), now
    )


def _unstarted(
    late: list[PodView], hosts: int, orders: Orders, now: float
) -> tuple[Cause | None, float | None]:
    """A host that cannot start a container while its peers can is left for another one. Where none can the place is
    not the matter (`failure.creating` tells of it)."""
    times = [pod.scheduled_at for pod in late if pod.scheduled_at is not None and failure.in_creation(pod)]
    if len(times) < len(late):
        return None, None
    moment = max(times) + orders.recovery.startup_seconds
    if moment > now:
        return None, moment
    if len(late) == hosts:
        return None, None
    first = min(late, key=lambda pod: pod.host)
    message = f"its container has not started {orders.recovery.startup_seconds} s after it got its node; others have"
    return Cause(failure.STARTUP_TIMED_OUT, message, first.name, first.node), None


def _due(moment: float, cause: Cause, now: float) -> tuple[Cause | None, float | None]:
    return (None, moment) if moment > now else (cause, None)


def _told(unit: UnitObserved, moment: float, cause: Cause, now: float) -> tuple[Cause | None, float | None]:
    """A deadline that the syncer is the witness of: an answer from before it says nothing. A dead syncer gives none."""
    if moment <= now and unit.heard is not None and unit.heard < moment:
        return None, now + AGAIN_SECONDS
    return _due(moment, cause, now)


def _disconnected(
    unit: UnitObserved, orders: Orders, gang: Muster, now: float
) -> tuple[Cause | None, float | None]:
    """Not judged while pods have yet to start, and while the syncer does not answer.

    Pods that restart in place have started once: a kubelet that holds a container back gets no longer than that.
    """
    restarted = remedy.restarted_at(unit.status)
    new = [pod for pod in gang.pods.values() if restarted is None or pod.made_for == unit.status.incarnation]
    old = [pod for pod in gang.pods.values() if pod.made_for != unit.status.incarnation]
    behind = [*gang.outgoing, *(pod for pod in old if not remedy.renewed(pod, unit.status))]
    if restarted is not None and behind:
        when = f"{remedy.RENEWAL_SECONDS:.0f} s after the order to restart in place"
        message = f"the last incarnation is still there {when}"
        cause = Cause(failure.STARTUP_TIMED_OUT, message, behind[0].name, behind[0].node)
        return _due(restarted + remedy.RENEWAL_SECONDS, cause, now)
    if gang.missing:  # the API server may refuse them
        return None, None
    if late := [pod for pod in new if pod.started_at is None]:
        return _unstarted(late, gang.hosts, orders, now)
    begun = [unit.answering_since, *(pod.started_at or restarted for pod in gang.pods.values())]
    moments = [moment for moment in begun if moment is not None]
    if len(moments) < len(begun):
        return None, None
    seconds = orders.recovery.startup_seconds
    since = "the order to restart in place" if restarted is not None else "the pods started"
    first = gang.pods[min(gang.pods)]
    message = f"not all hosts were connected to the syncer {seconds} s after {since}"
    scope = Scope.PROCESS if restarted is None else Scope.GANG
    cause = Cause(failure.STARTUP_TIMED_OUT, message, first.name, first.node, scope=scope)
    return _told(unit, max(*moments, restarted or 0.0) + seconds, cause, now)
