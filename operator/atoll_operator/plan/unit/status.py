"""The status of a unit, from what its pods and its syncer say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from atoll_operator.api.learnerunit import Heal, LearnerUnitStatus, UnitPhase
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import State, clip, find, state, transition
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.gang import Gang, chips
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import heal, timeline, waiting
from atoll_operator.plan.unit.observed import UnitObserved
from atoll_operator.plan.unit.slots import renewed
from atoll_runtime.contract import UnitReport

BACK_OFF = "BackOff"
"""Reason of `Healing` while a lost unit waits for its next restart."""


def describe(
    unit: UnitObserved, gang: Gang, pods: Sequence[PodView], now: float
) -> tuple[LearnerUnitStatus, float | None, tuple[Notice, ...]]:
    """The status of a unit whose incarnation is not lost, the seconds of a heal that ends now, and Events.

    Args:
        pods: those that stay, in order of hosts.
    """
    hosts = gang.hosts
    patience = unit.orders.recovery.startup_seconds if unit.orders is not None else math.inf
    wait = waiting.waiting(pods) or waiting.creating(pods, patience, now)
    placed = sum(bool(pod.node) for pod in pods)
    fresh = hosts if unit.met(hosts) else sum(renewed(unit, pod) for pod in pods)
    scheduled = placed == hosts
    ready = scheduled and fresh == hosts and all(pod.ready for pod in pods)
    restarting = ("Restarting", f"{fresh} of {hosts} containers restarted in place")
    starting = ("PodsStarting", f"{sum(pod.ready for pod in pods)} of {hosts} pods are ready")
    states: dict[str, State] = {
        "Scheduled": state(True, "Scheduled")
        if scheduled
        else state(False, *(wait or ("Placing", f"{placed} of {hosts} pods have a node"))),
        "PodsReady": state(True, "PodsReady")
        if ready
        else state(False, *(wait or (restarting if fresh < len(pods) else starting))),
        **_progress(unit),
        "Draining": state(False, "NotDraining"),
    }
    learning = states["Learning"][0] == "True"
    status = _figures(with_ledger(unit, unit.status), unit.report).model_copy(
        update={"chips": chips(unit.spec)}
    )
    healed, notices = None, list[Notice]()
    if learning:
        status = status.model_copy(update={"merged_incarnation": status.incarnation})
        status, healed = _end_heal(unit, status, now)
        if healed is not None:
            told = f"incarnation {status.incarnation} was merged {healed:.1f} s after the failure"
            notices.append(Notice("Normal", "Healed", told, f"{status.incarnation}"))
    status = timeline.filled(status, pods, unit.report)
    if status.last_heal is not None and timeline.news(unit.status, status) is not None:
        notices.append(timeline.notice(status.last_heal, unit.report))
    healing, cause = status.heal_start_time is not None, status.last_failure
    why = (cause.reason, f"{cause.reason}: {cause.message}") if cause is not None else ("Lost", "")
    states["Healing"] = state(True, *why) if healing else state(False, "NotHealing")
    phase: UnitPhase = "Joining" if ready else "Starting" if scheduled else "Scheduling"
    phase = "Learning" if learning else "Healing" if healing else phase
    message = "" if learning else next((text for _, _, text in states.values() if text), "")
    return written(unit, status, phase, message, states, now), healed, tuple(notices)


def _end_heal(
    unit: UnitObserved, status: LearnerUnitStatus, now: float
) -> tuple[LearnerUnitStatus, float | None]:
    """Close the heal under way, if any, because the unit was merged; the heal's seconds unless nothing was replaced."""
    under_way = heal.under_way(status)
    if under_way is None:
        return status, None
    merged = (unit.report.first_merge_time if unit.report is not None else None) or now
    spent = under_way.cost(merged)
    status = heal.ended(status, merged)
    before = find(unit.status.conditions, "Healing")
    if before is not None and before.reason == BACK_OFF:  # the unit came back by itself during the back-off
        return status, None
    last = Heal(
        incarnation=status.incarnation,
        reason=under_way.reason,
        started_at=format_time(under_way.started),
        seconds=spent.seconds,
        chip_seconds=spent.chip_seconds,
        steps=spent.steps,
    )
    return status.model_copy(update={"last_heal_seconds": spent.seconds, "last_heal": last}), spent.seconds


def _progress(unit: UnitObserved) -> dict[str, State]:
    """`Seeded` and `Learning`. While the syncer does not answer, as last known: the unit trains on."""
    report = unit.report
    if report is None or report.incarnation != unit.status.incarnation:
        if unit.answering_since is None:
            return {name: _last_known(unit, name) for name in ("Seeded", "Learning")}
        message = "the syncer has not heard of this incarnation yet"
        return {name: state(False, "NotConnected", message) for name in ("Seeded", "Learning")}
    seeded = _seeded(unit, report)
    if report.state == "Learning":
        return {
            "Seeded": seeded,
            "Learning": state(True, "Merged", f"{report.contributions} contributions merged"),
        }
    if report.state == "Gone":
        return {
            "Seeded": seeded,
            "Learning": state(False, "Disconnected", "no host is connected to the syncer"),
        }
    return {"Seeded": seeded, "Learning": state(False, "Joining", f"{report.hosts} hosts are connected")}


def _seeded(unit: UnitObserved, report: UnitReport) -> State:
    """With seeds from peers only the unit knows which peer it was; its message says so."""
    if report.seeded_step is None:
        return state(False, "Seeding", report.seed_message)
    from_peers = unit.orders is not None and unit.orders.recovery.seed == "Peer"
    reason, place = ("Seeded", "at global") if from_peers else ("Checkpoint", "from the global checkpoint of")
    text = f"{place} step {report.seeded_step}"
    return state(True, reason, f"{text}; {report.seed_message}" if report.seed_message else text)


def with_ledger(unit: UnitObserved, status: LearnerUnitStatus) -> LearnerUnitStatus:
    """The status with ledger and share as last known. They cover all incarnations."""
    if unit.share is not None:
        status = status.model_copy(update={"share_percent": round(100 * unit.share, 1)})
    return status if unit.ledger is None else status.model_copy(update={"ledger": unit.ledger})


def _last_known(unit: UnitObserved, name: str) -> State:
    known = find(unit.status.conditions, name)
    if known is None:
        return state(False, "SyncerUnavailable", "the syncer does not answer yet")
    return known.status, known.reason, known.message


def _figures(status: LearnerUnitStatus, report: UnitReport | None) -> LearnerUnitStatus:
    if report is None:
        return status
    figures: dict[str, object] = {"tokens": report.tokens}
    if report.incarnation == status.incarnation:
        figures |= {
            "step": report.step,
            "loss": status.loss if report.loss is None else round(report.loss, 4),
            "tokens_per_second": round(report.tokens_per_second, 1),
            "step_seconds": round(report.step_seconds, 4) or status.step_seconds,
            "staleness": report.staleness,
            "contributions": report.contributions,
            "seeded_step": report.seeded_step,
        }
    return status.model_copy(update=figures)


def lost(reason: str, message: str) -> dict[str, State]:
    """The states of a unit whose incarnation is lost."""
    return {
        "Scheduled": state(False, reason),
        "PodsReady": state(False, reason),
        "Seeded": state(False, reason),
        "Learning": state(False, reason),
        "Healing": state(True, reason, message),
        "Draining": state(False, "NotDraining"),
    }


def written(
    unit: UnitObserved,
    status: LearnerUnitStatus,
    phase: UnitPhase,
    message: str,
    states: Mapping[str, State],
    now: float,
) -> LearnerUnitStatus:
    """The status with this phase, this message and these conditions."""
    return status.model_copy(
        update={
            "phase": phase,
            "message": clip(message),
            "conditions": transition(unit.status.conditions, states, unit.generation, now),
            "observed_generation": unit.generation,
        }
    )
