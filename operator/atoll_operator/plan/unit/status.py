"""The status of a unit, from what its pods and its syncer say. A heal (`status.lastHeal`, `status.lost`) begins with a
failure, and ends with a merge, or with the end of the unit or its run. The stages of a heal come from the statuses of
pods and the syncer's report, and their sum is the heal. Pods report whole seconds, rounded down, and clocks of nodes
differ a little. So each stage begins where the previous one ends, and ends by the end of the heal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atoll_operator.api.learnerunit import Heal, HealStages, LearnerUnitStatus, UnitPhase
from atoll_operator.plan import conditions, cost
from atoll_operator.plan.conditions import Notice, State, find, format_time, parse_time, state, states_of
from atoll_operator.plan.pods.view import Pods
from atoll_operator.plan.unit import link, waiting
from atoll_operator.plan.unit.unit import BACK_OFF, UnitObserved, UnitPlan
from atoll_runtime.contract import BeginningReport, UnitReport


def describe(unit: UnitObserved, plan: UnitPlan) -> UnitPlan:
    """The plan. For a unit that runs, it gets the status, with a heal that ends now, and Events."""
    if (pods := plan.members) is None:
        return plan
    unit, hosts = replace(unit, status=plan.status), unit.hosts
    wait = waiting.waiting(pods, unit.recovery.startup_seconds, unit.now)
    placed = sum(bool(pod.node) for pod in pods)
    fresh = hosts if unit.met else sum(unit.renewed(pod) for pod in pods)
    scheduled = placed == hosts
    ready = scheduled and fresh == hosts and all(pod.ready for pod in pods)
    bound = f"{placed} of {hosts} pods have a node"
    starting = ("PodsStarting", f"{sum(pod.ready for pod in pods)} of {hosts} pods are ready")
    if fresh < len(pods):
        starting = ("Restarting", f"{fresh} of {hosts} containers restarted in place")
    states = {
        "Scheduled": _reached("Scheduled", scheduled, wait, "Placing", bound),
        "PodsReady": _reached("PodsReady", ready, wait, *starting),
        **_progress(unit),
        "Draining": state(False, "NotDraining"),
    }
    learning = states["Learning"][0] == "True"
    status = _with_figures(with_ledger(unit), unit.report)
    notices = conditions.skew_notices(unit.unknown, unit.generation)
    if learning:
        status = status.model_copy(update={"merged_incarnation": status.incarnation})
        merged = unit.report.first_merge_time if unit.report is not None else None
        status, last = ended_heal(status, merged or unit.now)
        by_itself = find(unit.status.conditions, "Healing").reason == BACK_OFF
        if last is not None and not by_itself:
            status = status.model_copy(update={"last_heal_seconds": last.seconds, "last_heal": last})
            text = f"incarnation {status.incarnation} was merged {last.seconds:.1f} s after the failure"
            notices.append(Notice("Normal", "Healed", text, f"{status.incarnation}"))
    status = _with_stages(status, pods, unit.report)
    healing, cause = status.heal_start_time is not None, status.last_failure
    why = f"{cause.reason}: {cause.message}" if healing and cause is not None else ""
    states["Healing"] = state(healing, last_reason(status) if healing else "NotHealing", why)
    phase: UnitPhase = "Joining" if ready else "Starting" if scheduled else "Scheduling"
    phase = "Learning" if learning else "Healing" if healing else phase
    message = "" if learning else next((text for _, _, text in states.values() if text), "")
    status = unit.written(status, phase, message, states)
    notices += link.notices(unit.status.conditions, status.conditions)
    return replace(plan, status=status, notices=tuple(notices))


def _reached(name: str, reached: bool, wait: tuple[str, str] | None, reason: str, message: str) -> State:
    """A condition that is True, or False: because of a wait, or if there is none, for this reason."""
    return state(True, name) if reached else state(False, *(wait or (reason, message)))


def _progress(unit: UnitObserved) -> dict[str, State]:
    """`Seeded` and `Learning`. They stay as last known while the syncer does not answer, because the unit trains on."""
    report = unit.current_report
    if report is None:
        unknown = state(False, "NotConnected", "the syncer has not heard of this incarnation yet")
        if unit.syncer.serving_since is not None:
            return {"Seeded": unknown, "Learning": unknown}
        unknown = state(False, "SyncerUnavailable", "the syncer does not answer yet")
        known = states_of(unit.status.conditions)
        return {name: known.get(name, unknown) for name in ("Seeded", "Learning")}
    slow, reason = (f"; {report.slow}", "SlowSteps") if report.slow else ("", "Merged")
    learning = {
        "Learning": state(True, reason, f"{report.contributions} contributions merged{slow}"),
        "Gone": state(False, "Disconnected", "no host is connected to the syncer"),
    }.get(report.state, state(False, "Joining", f"{report.hosts} hosts are connected{slow}"))
    return {"Seeded": _seeded(unit, report), "Learning": learning}


def _seeded(unit: UnitObserved, report: UnitReport) -> State:
    """With seeds from peers, only the unit knows which peer it was, and its message says so."""
    if report.seeded_step is None or not unit.met:  # the syncer tells a step as soon as it knows the unit
        return state(False, "Seeding", report.seed_message)
    from_peers = unit.recovery.seed == "Peer"
    reason, place = ("Seeded", "at global") if from_peers else ("Checkpoint", "from the global checkpoint of")
    text = f"{place} step {report.seeded_step}"
    return state(True, reason, f"{text}; {report.seed_message}" if report.seed_message else text)


def with_ledger(unit: UnitObserved) -> LearnerUnitStatus:
    """The status with ledger and share as last known. They cover all incarnations."""
    status, report, merged = unit.status, unit.syncer.status, unit.syncer.merged
    own = report.ledger.get(unit.name) if report is not None else None
    if report is None or own is None:
        return status
    ledger = cost.shown_ledger(own, report.fragments, unit.report)
    if ledger == status.ledger:  # the work of other units alone, which moves the share, needs no write
        return status
    share = round(100 * own.merged / merged, 1) if merged else status.share_percent
    return status.model_copy(update={"ledger": ledger, "share_percent": share})


def _with_figures(status: LearnerUnitStatus, report: UnitReport | None) -> LearnerUnitStatus:
    if report is None:
        return status
    figures: dict[str, Any] = {"tokens": report.tokens, "refusals": report.refusals}
    if report.incarnation == status.incarnation:
        figures |= report.model_dump(include={"step", "staleness", "contributions", "seeded_step"}) | {
            "loss": status.loss if report.loss is None else round(report.loss, 4),
            "tokens_per_second": round(report.tokens_per_second, 1),
            "step_seconds": round(report.step_seconds, 4) or status.step_seconds,
            "link": report.link if report.hosts else status.link,
        }
    return status.model_copy(update=figures)


def last_reason(status: LearnerUnitStatus) -> str:
    return status.last_failure.reason if status.last_failure is not None else "Lost"


def ended_heal(status: LearnerUnitStatus, moment: float) -> tuple[LearnerUnitStatus, Heal | None]:
    """The status after the end of the heal under way, with its cost added to `lost`; and that heal."""
    if status.heal_start_time is None:
        return status, None
    reason, started = status.heal_reason or last_reason(status), parse_time(status.heal_start_time)
    spent = cost.of_heal(max(moment - started, 0.0), status.chips, status.step_seconds)
    lost = cost.with_heal(status.lost, reason, spent)
    figures = spent.model_dump(exclude={"failures"})
    heal = Heal(incarnation=status.incarnation, reason=reason, started_at=format_time(started), **figures)
    return status.model_copy(update={"heal_start_time": None, "heal_reason": "", "lost": lost}), heal


def _stages(started: float, merged: float, pods: Pods, beginning: BeginningReport | None) -> HealStages:
    """Seconds of each stage from the failure to the first merge after it. A stage without a known end is None, and its
    time belongs to the next known stage."""
    scheduled, begun = [pod.scheduled_at for pod in pods], [pod.started_at for pod in pods]
    ends = {"schedule": _last(scheduled), "pull": _last(begun)}
    if beginning is not None:
        ends |= {"start": beginning.joined, "first_step": beginning.stepped, "catch_up": merged}
    seconds: dict[str, float] = {}
    at = started
    for name, end in ends.items():
        if end is not None:
            at, before = min(max(end, at), merged), at
            seconds[name] = at - before
    if beginning is not None:
        first_step = seconds.pop("first_step")
        seconds["compile"] = min(beginning.compiling, first_step)
        seconds["restore"] = first_step - seconds["compile"]
    return HealStages(**{name: round(value, 2) for name, value in seconds.items()})


def _with_stages(status: LearnerUnitStatus, pods: Pods, report: UnitReport | None) -> LearnerUnitStatus:
    """The status with the known stages of the last heal. A merge may be reported before the first step."""
    heal = status.last_heal
    if heal is None or heal.incarnation != status.incarnation or heal.stages.catch_up is not None:
        return status
    beginning = report.beginning if report and report.incarnation == heal.incarnation else None
    started = parse_time(heal.started_at)
    found = _stages(started, started + heal.seconds, pods, beginning)
    return status.model_copy(update={"last_heal": heal.model_copy(update={"stages": found})})


def _last(moments: Sequence[float | None]) -> float | None:
    known = [moment for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None
