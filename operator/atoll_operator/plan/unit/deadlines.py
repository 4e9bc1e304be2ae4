"""Failures that no single pod shows: `startupSeconds` and `hangSeconds`, judged by the clock and the syncer's reports,
a syncer that does not trust a unit's results, and a user's request to restart. While the syncer does not answer, no
step is judged. The time starts again when the syncer is back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from atoll_operator.plan.conditions import clip
from atoll_operator.plan.pods.view import Pods, PodView
from atoll_operator.plan.unit import failure
from atoll_operator.plan.unit.failure import STARTUP_TIMED_OUT, Action, Cause
from atoll_operator.plan.unit.unit import Pace, UnitObserved
from atoll_operator.plan.unit.waiting import in_creation
from atoll_runtime.contract import UnitReport

HEAL = "atoll.dev/heal"
"""Annotation by which a user asks for a restart on the hosts, as `kubectl atoll heal` writes it."""
RENEWAL_SECONDS = 90.0
"""Time from a restart until the last incarnation's processes and pods must have ended. A kubelet sees a pod's change at
once, and checks each pod every 60 to 90 s. A process that is stopped, or hangs in the kernel, does not end itself."""
AGAIN_SECONDS = 2.0
"""Time until the next check for an answer of the syncer, which is polled every 12 s in a large run."""
SUSPECT_ROOM = 3_500
"""Longest message about a suspect unit, in characters. It leaves room for what a condition says about the next try."""
Finding = tuple[Cause | None, float | None]
"""Why the incarnation is lost, or else when to check again."""
NOTHING: Finding = (None, None)


def follow(
    known: Pace | None, report: UnitReport | None, answering_since: float | None, heard_at: float | None
) -> Pace | None:
    """The pace after another report, which came at `heard_at`: a unit may be looked at long after that. None while the
    syncer does not answer or does not know the unit. A step seen before `answering_since` counts as seen now, because
    the syncer was away."""
    if report is None or answering_since is None or heard_at is None:
        return None
    pace = Pace(report.incarnation, report.step, report.loss is not None, heard_at)
    if known is None or replace(pace, since=known.since) != known or known.since < answering_since:
        return pace
    return known


def suspicion(unit: UnitObserved, pods: Pods) -> tuple[Cause, ...]:
    """The cause if the syncer does not trust the unit's results."""
    report = unit.current_report
    if report is None or not report.suspect:
        return ()
    message = f"{report.suspect}; it ran on {_hosts(unit, pods)}"
    return (Cause(failure.SUSPECT, clip(message, SUSPECT_ROOM), ""),)


def overdue(unit: UnitObserved, pods: Pods) -> Finding:
    """Whether a deadline has passed: for the restart, for the connection to the syncer, or for a step. The pods are
    those of the mesh in order of hosts; some may be missing."""
    if unit.is_asked(HEAL):
        return Cause(failure.RESTART_REQUESTED, f"annotation {HEAL}", "", action=Action.RESTART_PROCESS), None
    if not pods:
        return NOTHING
    if unit.met:
        return _hangs(unit, pods)
    since = unit.restarted_at
    if since is not None and (behind := [pod for pod in pods if _is_behind(unit, pod)]):
        message = f"the last incarnation is still there {RENEWAL_SECONDS:.0f} s after the order to restart"
        cause = Cause(STARTUP_TIMED_OUT, message, behind[0].name, behind[0].node)
        return _due(unit, since + RENEWAL_SECONDS, cause)
    if len(pods) < unit.hosts:  # the API server may refuse the others
        return NOTHING
    new = [pod for pod in pods if since is None or pod.made_for == unit.status.incarnation]
    if late := [pod for pod in new if pod.started_at is None]:
        return _not_started(unit, late)
    return _not_connected(unit, pods)


def _hosts(unit: UnitObserved, pods: Pods) -> str:
    """Where the unit ran: first the node pools, because a message has no room for the names of thousands of hosts."""
    nodes, pools = [pod.node for pod in pods if pod.node], Counter(unit.pool_of(pod) for pod in pods)
    counts = ", ".join(f"{count:,} in node pool {pool}" for pool, count in pools.items() if pool)
    return (f"{len(nodes):,} hosts ({counts}): " if counts else "") + ", ".join(nodes)


def _is_behind(unit: UnitObserved, pod: PodView) -> bool:
    """Whether the pod still belongs to the last incarnation."""
    if pod.made_for == unit.status.incarnation or pod.ended:
        return False
    return pod.leaves or not unit.renewed(pod)


def _not_started(unit: UnitObserved, late: Pods) -> Finding:
    """Leave a host that cannot start a container while its peers can. If none can, the hosts are not the reason, and
    `waiting.waiting` reports it."""
    times = [pod.scheduled_at for pod in late if pod.scheduled_at is not None and in_creation(pod)]
    if len(times) < len(late):
        return NOTHING
    seconds, first = unit.recovery.startup_seconds, late[0]
    message = f"its container has not started {seconds} s after it got its node; others have"
    found = _due(unit, max(times) + seconds, Cause(STARTUP_TIMED_OUT, message, first.name, first.node))
    return NOTHING if len(late) == unit.hosts and found[0] is not None else found


def _not_connected(unit: UnitObserved, pods: Pods) -> Finding:
    """The time to connect runs while all pods have started and the syncer answers. For a restarted pod without a
    running container it runs from the restart: a kubelet that holds the container back gets no more time."""
    since, seconds = unit.restarted_at, unit.recovery.startup_seconds
    moments = [unit.syncer.serving_since, *(pod.started_at or since for pod in pods)]
    if None in moments:
        return NOTHING
    after = "the pods started" if since is None else "the order to restart"
    message = f"not all hosts were connected to the syncer {seconds} s after {after}"
    action = Action.RESTART_PROCESS if since is None else Action.LEAVE_PLACE
    cause = Cause(STARTUP_TIMED_OUT, message, pods[0].name, pods[0].node, action=action)
    return _due_by_report(unit, max(moment or 0.0 for moment in (*moments, since)) + seconds, cause)


def _hangs(unit: UnitObserved, pods: Pods) -> Finding:
    """For seeding and compilation the unit has at least `startupSeconds` until its first step."""
    pace, seconds = unit.pace, unit.recovery.hang_seconds
    started = all(pod.started_at is not None for pod in pods)
    if pace is None or pace.incarnation != unit.status.incarnation or seconds == 0 or not started:
        return NOTHING
    since = f"after inner step {pace.step}"
    if not pace.stepped:
        seconds, since = max(seconds, unit.recovery.startup_seconds), "since the hosts were connected"
    message = f"no step has ended for {seconds} s, {since}, while the pods run"
    if unit.report is not None and unit.report.state == "Gone":
        message += "; no host is connected to the syncer"
    cause = Cause(failure.HANG, message, pods[0].name, pods[0].node, action=Action.RESTART_PROCESS)
    return _due_by_report(unit, pace.since + seconds, cause)


def _due_by_report(unit: UnitObserved, moment: float, cause: Cause) -> Finding:
    """A deadline that is judged by the syncer's reports. A report from before the deadline proves nothing."""
    heard = unit.syncer.heard_at
    if moment <= unit.now and heard is not None and heard < moment:
        return None, unit.now + AGAIN_SECONDS
    return _due(unit, moment, cause)


def _due(unit: UnitObserved, moment: float, cause: Cause) -> Finding:
    return (None, moment) if moment > unit.now else (cause, None)
