"""What to do for one LearnerUnit: which pods to make, which to remove, when to go to the next incarnation.

The order of writes makes a crash between any two harmless: the new incarnation is in the status before a pod of the old
one is deleted or told to restart, and `placedGang` follows only when all pods of the new one exist. Before that a
missing pod is work not done; after it, a loss.
"""

from __future__ import annotations

from dataclasses import replace

from atoll_operator.api.learnerunit import Failure, LearnerUnitStatus, Restart
from atoll_operator.plan import nodes
from atoll_operator.plan.clock import earliest, format_time, parse_time
from atoll_operator.plan.conditions import clip, find, state
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.gang import chips
from atoll_operator.plan.removal import DRAIN_SECONDS, removals
from atoll_operator.plan.unit import budget, heal, remedy, rest, timeline
from atoll_operator.plan.unit.failure import (
    CAPACITY_UNAVAILABLE,
    EVICTED,
    HOST_MAINTENANCE,
    POD_DELETED,
    Cause,
)
from atoll_operator.plan.unit.loss import AGAIN_SECONDS, find_loss
from atoll_operator.plan.unit.muster import Muster, muster
from atoll_operator.plan.unit.placement import overdue, spots
from atoll_operator.plan.unit.remedy import Damage, InPlace
from atoll_operator.plan.unit.status import BACK_OFF, Orders, UnitObserved, connected, describe, lost, written
from atoll_operator.plan.unit.unitgang import gang_of, gathering_of, stays
from atoll_operator.plan.unit.unitplan import UnitPlan


def plan_unit(unit: UnitObserved, now: float) -> UnitPlan:
    """Decides for one unit."""
    orders = unit.orders
    if orders is None:
        return rest.without_run(unit, now)
    if orders.stop:
        return rest.stopped(unit, orders, orders.stop, now)
    if unit.status.phase == "Failed" and not _changed(unit) and not _spared(unit, orders):
        return rest.failed(unit, orders, now)
    try:
        gang = gang_of(unit, orders)
        gang.check()
    except ValueError as error:
        return rest.idle(unit, now, "Pending", "SpecInvalid", str(error))
    if unit.status.incarnation == 0 and orders.begun and not _heard(unit):
        why = "the syncer does not answer: it may know incarnations of an earlier unit of this name"
        # Of a unit that the syncer does not know, its answer is no news.
        waits = rest.idle(unit, now, "Pending", "SyncerUnavailable", why)
        return replace(waits, wake=now + AGAIN_SECONDS)
    if _draining(unit.status):  # also where its spec has changed: its hosts are sound, and end together
        return _drain(unit, orders, now)
    if unit.status.incarnation == 0 or rest.rested(unit.status) or _changed(unit):
        return _advance(unit, _mended(unit.status), now)
    if unit.status.phase == "Failed":
        return _try_again(unit, orders, now)
    if _overtaken(unit):
        return _advance(unit, unit.status, now)
    gone = unit.report is not None and unit.report.state == "Gone"
    met = connected(unit, gang.hosts) and not gone
    roll = muster(gang.hosts, gang.slice.hosts, unit.pods, unit.departed, unit.status, unit.nodes, met)
    move = None if orders.finishing else nodes.leaving(roll.pods.values(), unit.nodes)
    verdict = _verdict(unit, orders, now)
    cause, wake = find_loss(unit, orders, roll, now)
    if cause is not None:
        if move is not None and cause.reason in (POD_DELETED, EVICTED):
            cause = move  # the platform was faster than we
        damage = roll.damage if stays(unit, orders, gang, roll) else Damage()
        if not met and remedy.aftershock(cause, unit.status, damage, unit.nodes, now):
            return _lose_more(unit, cause)
        return replace(_heal(unit, orders, cause, damage, verdict, now), doubtful=bool(roll.lost))
    if move is not None and (verdict.not_before <= now or not _moved_here(unit.status)):
        return _leave(unit, move, now)
    gathering = gathering_of(unit, gang, roll)
    no_room, patience = overdue(gathering, now)
    if no_room and verdict.not_before <= now:
        return replace(_give_up(unit, no_room, verdict, now), doubtful=True)
    status = unit.status
    if status.placed_gang != status.gang and not roll.missing:
        status = _placed(status, roll)
    stale = roll.others(unit.pods)
    # Hosts of a gang that failed wait for each other; one that gives way to a new spec is sound.
    grace = DRAIN_SECONDS if status.heal_start_time is None else 1
    remove, stuck = removals(stale, grace, orders.recovery.force_delete, now)
    status, healed, notices = describe(unit, gang, status, roll, now)
    return UnitPlan(
        status=status,
        service=gang.service(),
        create=() if orders.finishing else gang.pods(roll.free(spots(gathering, now))),
        remove=remove,
        renew=remedy.renewals(roll.pods.values(), status.incarnation),
        notices=notices,
        wake=earliest(wake, stuck, patience, verdict.not_before if move is not None or no_room else None),
        healed_seconds=healed,
        heal_stages=timeline.news(unit.status, status),
    )


def _placed(status: LearnerUnitStatus, roll: Muster) -> LearnerUnitStatus:
    """All pods of the gang were made; those of this incarnation alone where others had stayed."""
    if status.incarnation > status.gang and status.restarts:
        *before, last = status.restarts
        new = sum(pod.made_for == status.incarnation for pod in roll.pods.values())
        status = status.model_copy(update={"restarts": (*before, last.model_copy(update={"replaced": new}))})
    return status.model_copy(update={"placed_gang": status.gang})


def _changed(unit: UnitObserved) -> bool:
    """Somebody changed the unit's spec after the status was written: the pods are those of the old one."""
    return unit.status.observed_generation not in (0, unit.generation)


def _spared(unit: UnitObserved, orders: Orders) -> bool:
    """A unit was given up that would not have been under the budget of now."""
    restarts = unit.status.restarts  # those of the window in which it was given up
    last = parse_time(restarts[-1].time) if restarts else 0.0
    return not budget.judge(restarts, orders.recovery, last, 0.0).exhausted


def _try_again(unit: UnitObserved, orders: Orders, now: float) -> UnitPlan:
    failure = unit.status.last_failure
    reason = failure.reason if failure is not None else "Lost"
    return _advance(unit, _counted(unit.status, _verdict(unit, orders, now), reason, None, now), now)


def _heard(unit: UnitObserved) -> bool:
    """What the syncer knows of units of this name is known."""
    return unit.report is not None or unit.answering_since is not None


def _overtaken(unit: UnitObserved) -> bool:
    """The syncer knows a later incarnation, of an earlier unit of this name: it fences this one off, by no fault of
    the unit."""
    return unit.report is not None and unit.report.incarnation > unit.status.incarnation


def _mended(status: LearnerUnitStatus) -> LearnerUnitStatus:
    """A unit that was given up has its whole budget again: what failed was the old spec."""
    return status.model_copy(update={"restarts": ()}) if status.phase == "Failed" else status


def _verdict(unit: UnitObserved, orders: Orders, now: float) -> budget.Verdict:
    jitter = budget.jitter(unit.uid, unit.status.incarnation)
    return budget.judge(unit.status.restarts, orders.recovery, now, jitter)


def _heal(
    unit: UnitObserved,
    orders: Orders,
    cause: Cause,
    damage: Damage,
    verdict: budget.Verdict,
    now: float,
) -> UnitPlan:
    """The current incarnation is lost: the next one at once, after a back-off, or never.

    Args:
        damage: to its gang; empty where that is to be a new one.
    """
    status = _failing(unit.status, cause, now)
    notice = _notice(unit, cause)
    if verdict.exhausted and not budget.spared(cause.reason, verdict.recent):
        return _exhausted(unit, orders, status, notice, verdict, now)
    if verdict.not_before > now:
        until = format_time(verdict.not_before)
        message = f"{cause.reason}: {cause.message}; tries again at {until}"
        status = written(unit, status, "Healing", message, lost(BACK_OFF, message), now)
        return UnitPlan(status=status, notices=(notice,), wake=verdict.not_before)
    seen = unit.report.incarnation if unit.report is not None else 0
    in_place = remedy.in_place(cause, status, damage, unit.nodes, seen, now)
    how = InPlace(len(damage.lost), len(damage.kept) + len(damage.lost)) if in_place else None
    plan = _advance(unit, _counted(status, verdict, cause.reason, how, now), now, how)
    return replace(plan, notices=(notice, *plan.notices))


def _lose_more(unit: UnitObserved, cause: Cause) -> UnitPlan:
    """More pods of a gang that restarts in place were lost with the first."""
    status = unit.status.model_copy(update={"placed_gang": 0})
    return UnitPlan(status=status, advance=True, doubtful=True, notices=(_notice(unit, cause),))


def _give_up(unit: UnitObserved, why: str, verdict: budget.Verdict, now: float) -> UnitPlan:
    """There is no room for the gang where it is, or is to be. Nothing failed: only the back-off counts it."""
    restart = Restart(time=format_time(now), reason=CAPACITY_UNAVAILABLE)
    plan = _advance(unit, unit.status.model_copy(update={"restarts": (*verdict.recent, restart)}), now)
    notice = Notice("Normal", CAPACITY_UNAVAILABLE, f"looks for another place: {why}", f"{unit.status.gang}")
    return UnitPlan(status=plan.status, advance=True, notices=(notice,))


def _leave(unit: UnitObserved, cause: Cause, now: float) -> UnitPlan:
    """The gang is told to go before its host is: first of all the status says so."""
    status = _failing(unit.status, cause, now)
    message = f"{cause.message}; the unit ends between two steps and moves"
    states = lost(cause.reason, message) | {"Draining": state(True, cause.reason, message)}
    status = written(unit, status, "Healing", message, states, now)
    return UnitPlan(status=status, advance=True, notices=(_notice(unit, cause),))


def _drain(unit: UnitObserved, orders: Orders, now: float) -> UnitPlan:
    """A gang that moves gets SIGTERM and time; when its pods have ended, or that is over, the next one is made, but
    not within the back-off of a failure before."""
    current = [pod for pod in unit.pods if pod.gang == unit.status.gang]
    told = tuple(pod for pod in current if not remedy.leaves(pod))
    if told:
        remove, _ = removals(told, DRAIN_SECONDS, False, now)
        return UnitPlan(status=unit.status, remove=remove, wake=now + DRAIN_SECONDS)
    ends = [pod.deletion_time for pod in current if not pod.ended and pod.deletion_time is not None]
    if ends and max(ends) > now:
        return UnitPlan(status=unit.status, wake=max(ends))
    verdict = _verdict(unit, orders, now)
    if verdict.not_before > now:
        until = format_time(verdict.not_before)
        message = f"{HOST_MAINTENANCE}: the hosts are given back; the unit comes back at {until}"
        states = lost(HOST_MAINTENANCE, message) | {"Draining": state(True, HOST_MAINTENANCE, message)}
        status = written(unit, unit.status, "Healing", message, states, now)
        return UnitPlan(status=status, wake=verdict.not_before)
    return _advance(unit, _counted(unit.status, verdict, HOST_MAINTENANCE, None, now), now)


def _moved_here(status: LearnerUnitStatus) -> bool:
    """The last restart was a move for a maintenance: a pool that tolerates every taint would move for ever."""
    return bool(status.restarts) and status.restarts[-1].reason == HOST_MAINTENANCE


def _draining(status: LearnerUnitStatus) -> bool:
    draining = find(status.conditions, "Draining")
    return draining is not None and (draining.status, draining.reason) == ("True", HOST_MAINTENANCE)


def _failing(old: LearnerUnitStatus, cause: Cause, now: float) -> LearnerUnitStatus:
    """With the failure, and the time at which the heal began."""
    known, healing = old.last_failure, find(old.conditions, "Healing")
    noted = healing is not None and healing.reason == BACK_OFF
    if not noted or known is None or (known.pod, known.reason) != (cause.pod, cause.reason):
        known = Failure(
            reason=cause.reason,
            message=clip(cause.message),
            pod=cause.pod,
            node=cause.node,
            exit_code=cause.exit_code,
            time=format_time(cause.time or now),
        )
    began = heal.begun(old, cause.reason, min(cause.time or now, now))
    return began.model_copy(update={"last_failure": known})


def _counted(
    status: LearnerUnitStatus, verdict: budget.Verdict, reason: str, how: InPlace | None, now: float
) -> LearnerUnitStatus:
    replaced = how.replaced if how is not None else 0
    restart = Restart(time=format_time(now), reason=reason, in_place=how is not None, replaced=replaced)
    return status.model_copy(
        update={"restarts": (*verdict.recent, restart), "restart_count": status.restart_count + 1}
    )


def _notice(unit: UnitObserved, cause: Cause) -> Notice:
    return Notice("Warning", cause.reason, f"{cause.pod}: {cause.message}", f"{unit.status.incarnation}")


def _advance(
    unit: UnitObserved, status: LearnerUnitStatus, now: float, in_place: InPlace | None = None
) -> UnitPlan:
    """To the next incarnation: above ours, and above any that the syncer has seen of a unit of this name."""
    seen = unit.report.incarnation if unit.report is not None else 0
    incarnation = max(status.incarnation, seen) + 1
    healing = status.heal_start_time is not None
    reason = "SpecChanged" if status.incarnation and _changed(unit) else "Created"
    reason = status.last_failure.reason if healing and status.last_failure else reason
    message = f"{reason}: incarnation {incarnation} {in_place or 'gets a new gang'}"
    gang = status.gang if in_place else incarnation
    fresh = {
        "incarnation": incarnation,
        "gang": gang,
        "chips": chips(unit.spec),
        "seeded_step": None,
        "contributions": 0,
    }
    states = lost("Restarting" if in_place else "Creating", message)
    states["Healing"] = state(healing, reason, message if healing else "")
    if in_place and in_place.replaced:
        fresh["placed_gang"] = 0
    elif in_place:
        states["Scheduled"] = state(True, "Scheduled")
    status = status.model_copy(update=fresh)
    status = written(unit, status, "Healing" if healing else "Pending", message, states, now)
    told = Notice("Normal", "RestartInPlace" if in_place else "NewGang", message, f"{incarnation}")
    return UnitPlan(status=status, advance=True, notices=(told,) if healing else ())


def _exhausted(
    unit: UnitObserved,
    orders: Orders,
    status: LearnerUnitStatus,
    notice: Notice,
    verdict: budget.Verdict,
    now: float,
) -> UnitPlan:
    """No more tries; the failed unit is kept to be looked at, its pods are not."""
    reason = "RestartBudgetExhausted"
    message = (
        f"{orders.recovery.max_restarts} restarts within {orders.recovery.window_seconds} s are the limit; "
        f"last failure: {notice.reason}: {notice.message}. Delete this LearnerUnit to try again"
    )
    states = lost(reason, message) | {"Healing": state(False, reason, message)}
    status = heal.ended(status, now).model_copy(update={"restarts": verdict.recent})
    status = written(unit, status, "Failed", message, states, now)
    return UnitPlan(
        status=status,
        advance=True,
        notices=(notice, Notice("Warning", reason, message, f"{status.incarnation}")),
    )
