"""The status of a unit, from what its pods and its syncer say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atoll_operator.api.learnerunit import LearnerUnitStatus, UnitPhase
from atoll_operator.plan.conditions import Notice, State, find, state
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import heal, waiting
from atoll_operator.plan.unit.unit import BACK_OFF, UnitObserved, UnitPlan
from atoll_runtime.contract import UnitReport


def describe(unit: UnitObserved, pods: Sequence[PodView]) -> UnitPlan:
    """A plan with the status of a unit whose incarnation is not lost, the heal that ends now, and Events.

    Args:
        pods: those that stay, in order of hosts.
    """
    hosts = unit.hosts
    wait = waiting.waiting(pods, unit.recovery.startup_seconds, unit.now)
    placed = sum(bool(pod.node) for pod in pods)
    fresh = hosts if unit.met else sum(unit.renewed(pod) for pod in pods)
    scheduled = placed == hosts
    ready = scheduled and fresh == hosts and all(pod.ready for pod in pods)
    starting = ("PodsStarting", f"{sum(pod.ready for pod in pods)} of {hosts} pods are ready")
    if fresh < len(pods):
        starting = ("Restarting", f"{fresh} of {hosts} containers restarted in place")
    states = {
        "Scheduled": _reached(
            "Scheduled", scheduled, wait, "Placing", f"{placed} of {hosts} pods have a node"
        ),
        "PodsReady": _reached("PodsReady", ready, wait, *starting),
        **_progress(unit),
        "Draining": state(False, "NotDraining"),
    }
    learning = states["Learning"][0] == "True"
    status = _with_figures(with_ledger(unit, unit.status), unit.report)
    status = status.model_copy(update={"chips": unit.chips})
    healed, notices = None, list[Notice]()
    if learning:
        status = status.model_copy(update={"merged_incarnation": status.incarnation})
        merged = unit.report.first_merge_time if unit.report is not None else None
        status, last = heal.ended(status, merged or unit.now)
        before = find(unit.status.conditions, "Healing")
        if last is not None and (before is None or before.reason != BACK_OFF):  # else it came back by itself
            healed = last.seconds
            status = status.model_copy(update={"last_heal_seconds": healed, "last_heal": last})
            told = f"incarnation {status.incarnation} was merged {healed:.1f} s after the failure"
            notices.append(Notice("Normal", "Healed", told, f"{status.incarnation}"))
    status, stages = heal.with_stages(status, pods, unit.report)
    if stages is not None and status.last_heal is not None:
        notices.append(heal.stages_notice(status.last_heal, unit.report))
    healing, cause = status.heal_start_time is not None, status.last_failure
    why = f"{cause.reason}: {cause.message}" if cause is not None else ""
    states["Healing"] = state(
        healing, heal.last_reason(status) if healing else "NotHealing", why if healing else ""
    )
    phase: UnitPhase = "Joining" if ready else "Starting" if scheduled else "Scheduling"
    phase = "Learning" if learning else "Healing" if healing else phase
    message = "" if learning else next((text for _, _, text in states.values() if text), "")
    return UnitPlan(
        status=unit.written(status, phase, message, states),
        notices=tuple(notices),
        healed_seconds=healed,
        heal_stages=stages,
    )


def _reached(name: str, reached: bool, wait: tuple[str, str] | None, reason: str, message: str) -> State:
    """A condition that is True, or False because of a wait or else for this reason."""
    return state(True, name) if reached else state(False, *(wait or (reason, message)))


def _progress(unit: UnitObserved) -> dict[str, State]:
    """`Seeded` and `Learning`. While the syncer does not answer, as last known: the unit trains on."""
    report = unit.report
    if report is None or report.incarnation != unit.status.incarnation:
        unknown = state(False, "NotConnected", "the syncer has not heard of this incarnation yet")
        if unit.answering_since is not None:
            return {"Seeded": unknown, "Learning": unknown}
        unknown = state(False, "SyncerUnavailable", "the syncer does not answer yet")
        known = {item.type: (item.status, item.reason, item.message) for item in unit.status.conditions}
        return {name: known.get(name, unknown) for name in ("Seeded", "Learning")}
    learning = {
        "Learning": state(True, "Merged", f"{report.contributions} contributions merged"),
        "Gone": state(False, "Disconnected", "no host is connected to the syncer"),
    }.get(report.state, state(False, "Joining", f"{report.hosts} hosts are connected"))
    return {"Seeded": _seeded(unit, report), "Learning": learning}


def _seeded(unit: UnitObserved, report: UnitReport) -> State:
    """With seeds from peers only the unit knows which peer it was; its message says so."""
    if report.seeded_step is None:
        return state(False, "Seeding", report.seed_message)
    from_peers = unit.recovery.seed == "Peer"
    reason, place = ("Seeded", "at global") if from_peers else ("Checkpoint", "from the global checkpoint of")
    text = f"{place} step {report.seeded_step}"
    return state(True, reason, f"{text}; {report.seed_message}" if report.seed_message else text)


def with_ledger(unit: UnitObserved, status: LearnerUnitStatus) -> LearnerUnitStatus:
    """The status with ledger and share as last known. They cover all incarnations."""
    update: dict[str, Any] = {}
    if unit.share is not None:
        update["share_percent"] = round(100 * unit.share, 1)
    if unit.ledger is not None:
        update["ledger"] = unit.ledger
    return status.model_copy(update=update)


def _with_figures(status: LearnerUnitStatus, report: UnitReport | None) -> LearnerUnitStatus:
    if report is None:
        return status
    figures: dict[str, Any] = {"tokens": report.tokens}
    if report.incarnation == status.incarnation:
        figures |= report.model_dump(include={"step", "staleness", "contributions", "seeded_step"}) | {
            "loss": status.loss if report.loss is None else round(report.loss, 4),
            "tokens_per_second": round(report.tokens_per_second, 1),
            "step_seconds": round(report.step_seconds, 4) or status.step_seconds,
        }
    return status.model_copy(update=figures)
