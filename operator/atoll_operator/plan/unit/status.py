"""The status of a unit, from what its pods and its syncer say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.learnerunit import Heal, LearnerUnitSpec, LearnerUnitStatus, UnitPhase
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import State, clip, find, is_true, state, transition
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.gang import Gang, chips
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import failure, heal, remedy, timeline
from atoll_operator.plan.unit.hang import Pace
from atoll_operator.plan.unit.muster import Muster
from atoll_runtime.contract import UnitReport

BACK_OFF = "BackOff"
"""Reason of `Healing` while a lost gang waits for its successor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the run wants of its units."""

    stop: Literal["", "Suspended", "Finished"]
    finishing: bool
    """The target is reached, and what is left is the syncer's: pods may end, and none is made again."""
    recovery: RecoverySpec
    settings: PodSettings
    begun: bool = False
    """Something is merged, so that the syncer may know incarnations of a unit that is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitObserved:
    """One unit as it is."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: LearnerUnitSpec
    status: LearnerUnitStatus
    pods: tuple[PodView, ...]
    """Those that this unit owns, of any incarnation."""
    orders: Orders | None
    """None when there is no such run."""
    report: UnitReport | None = None
    """The syncer's, None when it knows no such unit or does not answer."""
    ledger: LedgerStatus | None = None
    """As last known."""
    share: float | None = None
    """Of all tokens merged, 0 to 1; as last known."""
    answering_since: float | None = None
    """Unix seconds since which all of the syncer answers; None while any of it does not."""
    heard: float | None = None
    """Unix seconds of the syncer's last answer, which `report` is of; None: now."""
    pace: Pace | None = None
    """Of the unit's steps; None while nothing is known."""
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    """Those that its pods are on or were on, as far as the operator may see them."""
    sees_nodes: bool = False
    """The operator sees the cluster's nodes."""
    sound_chips: Mapping[str, int] = field(default_factory=dict)
    """By node pool of the unit's accelerator and topology, the chips of the nodes that stay."""
    departed: Mapping[int, PodView] = field(default_factory=dict)
    """The last that was seen of pods that are gone, by host: they tell why better than their absence does."""


def connected(unit: UnitObserved, hosts: int) -> bool:
    """Whether all hosts of this incarnation are, or were, connected to the syncer."""
    report = unit.report
    return is_true(unit.status.conditions, "Seeded") or (
        report is not None and report.incarnation == unit.status.incarnation and report.hosts >= hosts
    )


def describe(
    unit: UnitObserved,
    gang: Gang,
    status: LearnerUnitStatus,
    roll: Muster,
    now: float,
) -> tuple[LearnerUnitStatus, float | None, tuple[Notice, ...]]:
    """The status of a gang that is not lost, the seconds of a heal that is done now, and what is to be told."""
    pods, hosts = tuple(roll.pods.values()), roll.hosts
    patience = unit.orders.recovery.startup_seconds if unit.orders is not None else math.inf
    waiting = failure.waiting(pods) or failure.creating(pods, patience, now)
    scheduled = not roll.missing and all(pod.node for pod in pods)
    renewed = hosts if connected(unit, hosts) else sum(remedy.renewed(pod, status) for pod in pods)
    ready = scheduled and renewed == hosts and all(pod.ready for pod in pods)
    restarting = ("Restarting", f"{renewed} of {hosts} containers restarted in place")
    starting = ("PodsStarting", f"{sum(pod.ready for pod in pods)} of {hosts} pods are ready")
    blocked = waiting or (restarting if renewed < len(pods) else starting)
    states: dict[str, State] = {
        "Scheduled": state(True, "Scheduled")
        if scheduled
        else state(
            False,
            *(waiting or ("Placing", f"{sum(bool(pod.node) for pod in pods)} of {hosts} pods have a node")),
        ),
        "PodsReady": state(True, "PodsReady") if ready else state(False, *blocked),
        **_progress(unit),
        "Draining": state(False, "NotDraining"),
    }
    status = _figures(with_ledger(unit, status), unit.report).model_copy(update={"chips": chips(gang.spec)})
    learning = states["Learning"][0] == "True"
    if learning:
        status = status.model_copy(update={"merged_incarnation": status.incarnation})
    healed: float | None = None
    notices: tuple[Notice, ...] = ()
    before = find(unit.status.conditions, "Healing")
    under_way = heal.under_way(status)
    if learning and under_way is not None:
        merged = unit.report.first_merge_time if unit.report is not None else None
        spent = under_way.cost(merged or now)
        status = heal.ended(status, merged or now)
        if (
            before is None or before.reason != BACK_OFF
        ):  # else the gang came back by itself and was not replaced
            healed = spent.seconds
            last = Heal(
                incarnation=status.incarnation,
                reason=under_way.reason,
                started_at=format_time(under_way.started),
                seconds=spent.seconds,
                chip_seconds=spent.chip_seconds,
                steps=spent.steps,
            )
            status = status.model_copy(update={"last_heal_seconds": healed, "last_heal": last})
            told = f"incarnation {status.incarnation} was merged {healed:.1f} s after the failure"
            notices = (Notice("Normal", "Healed", told, f"{status.incarnation}"),)
    status = timeline.filled(status, pods, unit.report)
    if status.last_heal is not None and timeline.news(unit.status, status) is not None:
        notices += (timeline.notice(status.last_heal, unit.report),)
    healing = status.heal_start_time is not None
    cause = status.last_failure
    why = f"{cause.reason}: {cause.message}" if cause is not None else ""
    states["Healing"] = (
        state(True, cause.reason if cause else "Lost", why) if healing else state(False, "NotHealing")
    )
    phase: UnitPhase = (
        "Learning"
        if learning
        else "Healing"
        if healing
        else "Joining"
        if ready
        else "Starting"
        if scheduled
        else "Scheduling"
    )
    message = "" if learning else next((text for _, _, text in states.values() if text), "")
    return written(unit, status, phase, message, states, now), healed, notices


def _progress(unit: UnitObserved) -> dict[str, State]:
    """`Seeded` and `Learning`; what was last known, while the syncer does not answer: the unit trains on."""
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
    """Where peers may seed, the unit alone knows who did, and its message says so."""
    if report.seeded_step is None:
        return state(False, "Seeding", report.seed_message)
    from_peers = unit.orders is not None and unit.orders.recovery.seed == "Peer"
    reason, place = ("Seeded", "at global") if from_peers else ("Checkpoint", "from the global checkpoint of")
    text = f"{place} step {report.seeded_step}"
    return state(True, reason, f"{text}; {report.seed_message}" if report.seed_message else text)


def with_ledger(unit: UnitObserved, status: LearnerUnitStatus) -> LearnerUnitStatus:
    """The status with ledger and share as last known; they are of all incarnations."""
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
    """The states of a unit without a working gang."""
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
