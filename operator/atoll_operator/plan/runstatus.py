"""The status of a run, from what its syncer and its units say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, LEARNER
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import CheckpointStatus, RunPhase, TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan import cost, ledger
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import State, clip, find, is_true, state, transition
from atoll_operator.plan.shards import Traffic
from atoll_operator.plan.suspension import Suspension
from atoll_runtime.contract import SyncerStatus

BEFORE = ("Pending", "Starting", "Suspending", "Suspended")
"""Phases out of which a run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """All that a run's status follows from."""

    name: str
    generation: int
    spec: TrainingRunSpec
    old: TrainingRunStatus
    wanted: int
    units: Mapping[str, LearnerUnitStatus]
    outdated: int
    """Units that have yet to be made anew for a change of the spec."""
    rollout: str
    """Why they wait."""
    quorum_lost: str
    """Why too few units are left, in words; empty while enough are."""
    suspension: Suspension | None
    """None unless the run is to be suspended."""
    taken: tuple[str, ...]
    """Names of our units that another run's units bear."""
    syncer: SyncerStatus | None
    """Its last good answer."""
    feed_reason: str
    feed_message: str
    traffic: Traffic
    answers: bool
    """Whether any shard does."""
    shards_down: str
    """Shards that do not serve while others answer, and why."""
    syncer_wait: str
    """Why shards' pods do not run."""

    @property
    def learning(self) -> int:
        return sum(is_true(unit.conditions, "Learning") for unit in self.units.values())


def describe(facts: RunFacts, now: float, ended: tuple[str, str, str] | None = None) -> TrainingRunStatus:
    """The status now; `ended` is phase, reason and message of a run that is over, reason empty if it was before."""
    figures = _figures(facts, now)
    if ended is not None:
        return _over(facts, figures, *ended, now)
    if facts.suspension is not None:
        phase: RunPhase = "Suspended" if facts.suspension.done else "Suspending"
        states = _suspended(facts.suspension)
    else:
        phase = _phase(facts)
        states = _running(facts)
    told = [text for name, (status, _, text) in states.items() if text and _matters(name, status)]
    message = "; ".join(dict.fromkeys(told))
    if not message and facts.syncer is not None:
        message = facts.syncer.message
    return figures.model_copy(
        update={
            "phase": phase,
            "message": clip(message),
            "conditions": transition(facts.old.conditions, states, facts.generation, now),
        }
    )


def _matters(name: str, status: str) -> bool:
    return (name == "Ready" and status != "True") or (name == "Degraded" and status == "True")


def _phase(facts: RunFacts) -> RunPhase:
    report = facts.syncer
    if report is None:
        return "Starting" if facts.old.phase in BEFORE else facts.old.phase
    if report.phase == "Finishing":
        return "Finishing"
    if facts.learning or (report.phase == "Running" and report.global_step > 0):
        return "Running"
    return "Starting"


def _running(facts: RunFacts) -> dict[str, State]:
    quorum = facts.spec.quorum.min
    report = facts.syncer
    if not facts.wanted:
        ready = state(
            False, "ScaledToZero", "no units are wanted; the syncer waits with the state of the run"
        )
    elif facts.quorum_lost:
        ready = state(False, "QuorumLost", facts.quorum_lost)
    elif not facts.answers:
        ready = _unanswered(facts)
    elif report is None or report.phase == "Starting":
        ready = state(False, "SyncerStarting", report.message if report else "")
    elif report.phase == "Finishing":
        ready = state(True, "Finishing", report.message)
    elif facts.learning >= quorum:
        ready = state(
            True, "QuorumLearning", f"{facts.learning} of {facts.wanted} units learn, {quorum} are needed"
        )
    else:
        text = f"{facts.learning} of {facts.wanted} units learn, {quorum} are needed"
        ready = state(False, "QuorumNotMet", f"{text}; {report.message}" if report.message else text)
    progressing = state(
        ready[0] == "True",
        "Merging" if ready[0] == "True" else ready[1],
        facts.rollout or (report.message if report else ""),
    )
    return {
        "Ready": ready,
        "Progressing": progressing,
        "Degraded": _degraded(facts),
        "Suspended": state(False, "NotSuspended"),
        "Complete": state(False, "NotFinished"),
        "Failed": state(False, "NotFailed"),
        "Stalled": state(False, "NotStalled"),
    }


def _unanswered(facts: RunFacts) -> State:
    """The syncer does not answer: it starts, it is down, or it shows a wrong certificate."""
    starting = facts.old.phase in BEFORE and facts.old.global_step == 0
    reason = facts.feed_reason or "SyncerUnavailable"
    if starting and reason == "SyncerUnavailable":
        return state(False, "SyncerStarting", facts.syncer_wait or facts.feed_message)
    return state(False, reason, facts.syncer_wait or facts.feed_message)


def _degraded(facts: RunFacts) -> State:
    report = facts.syncer
    if facts.taken:
        return state(
            True, "NameTaken", f"units of another run are called {', '.join(facts.taken)}; use another name"
        )
    if not facts.answers and (
        facts.old.global_step > 0 or facts.feed_reason not in ("", "SyncerUnavailable")
    ):
        text = facts.syncer_wait or facts.feed_message
        return state(True, facts.feed_reason or "SyncerUnavailable", f"{text}; units train on without merges")
    begun = facts.old.global_step > 0 or (report is not None and report.global_step > 0)
    if facts.shards_down and begun:
        text = "; ".join(filter(None, (facts.shards_down, facts.syncer_wait)))
        return state(
            True, "SyncerShardDown", f"{text}; units train on, tensors of these shards are not merged"
        )
    if report is not None and report.checkpoint.error:
        return state(True, "CheckpointFailed", report.checkpoint.error)
    failed = sorted(name for name, unit in facts.units.items() if unit.phase == "Failed")
    if failed:
        return state(True, "UnitFailed", f"{', '.join(failed)}: {facts.units[failed[0]].message}")
    healing = sorted(name for name, unit in facts.units.items() if unit.phase == "Healing")
    if healing:
        return state(True, "UnitHealing", f"{', '.join(healing)}: {facts.units[healing[0]].message}")
    for name, unit in sorted(facts.units.items()):
        scheduled = find(unit.conditions, "Scheduled")
        if scheduled is not None and scheduled.reason == "CapacityUnavailable":
            return state(True, "CapacityUnavailable", f"{name}: {scheduled.message}")
    return state(False, "AsExpected")


def _suspended(suspension: Suspension) -> dict[str, State]:
    reason = "Suspended" if suspension.done else "Suspending"
    return {
        "Ready": state(False, reason, "" if suspension.done else suspension.message),
        "Progressing": state(False, reason),
        "Degraded": state(False, reason),
        "Suspended": state(suspension.done, reason, suspension.message),
        "Complete": state(False, "NotFinished"),
        "Failed": state(False, "NotFailed"),
        "Stalled": state(False, "NotStalled"),
    }


def _over(
    facts: RunFacts, figures: TrainingRunStatus, phase: str, reason: str, message: str, now: float
) -> TrainingRunStatus:
    complete = phase == "Complete"
    verdict = find(facts.old.conditions, phase)
    if not reason and verdict is not None:
        reason, message = verdict.reason, verdict.message
    states = {
        "Ready": state(complete, reason, message),
        "Progressing": state(False, phase),
        "Degraded": state(False, phase),
        "Suspended": state(False, phase),
        "Complete": state(complete, reason, message if complete else ""),
        "Failed": state(not complete, reason, "" if complete else message),
        "Stalled": state(not complete, reason, "" if complete else message),
    }
    return figures.model_copy(
        update={
            "phase": phase,
            "message": clip(message),
            "tokens_per_second": 0.0,
            "gbit_per_second_in": 0.0,
            "gbit_per_second_out": 0.0,
            "estimated_seconds_left": None,
            "progress_percent": 100 if complete else figures.progress_percent,
            "completion_time": facts.old.completion_time or format_time(now),
            "conditions": transition(facts.old.conditions, states, facts.generation, now),
        }
    )


def _figures(facts: RunFacts, now: float) -> TrainingRunStatus:
    """Counts of units, and the syncer's figures as last known."""
    over = facts.old.phase in ("Complete", "Failed")
    ready = facts.old.units_ready if over else facts.learning
    costs = [unit.lost for unit in facts.units.values() if unit.lost is not None]
    update: dict[str, object] = {
        "units": len(facts.units),
        "units_ready": ready,
        "units_wanted": facts.wanted,
        "units_updated": len(facts.units) - facts.outdated,
        "selector": f"{LABEL_RUN}={facts.name},{LABEL_COMPONENT}={LEARNER}",
        "units_summary": f"{ready}/{facts.wanted}",
        "restarts": sum(unit.restart_count for unit in facts.units.values()),
        "last_heal_seconds": _last_heal(facts),
        "lost": cost.total(costs) if costs else None,
        "observed_generation": facts.generation,
    }
    report = facts.syncer
    if report is not None and not over:
        update |= {
            "global_step": report.global_step,
            "target_steps": report.target_steps or facts.spec.target.global_steps,
            "progress_percent": _percent(facts, report),
            "tokens": report.tokens,
            "tokens_per_second": round(report.tokens_per_second, 1) if facts.answers else 0.0,
            "loss": facts.old.loss if report.loss is None else round(report.loss, 4),
            "quorum": report.quorum,
            "bytes_in": report.bytes_in,
            "bytes_out": report.bytes_out,
            "gbit_per_second_in": round(facts.traffic.into, 3) if facts.answers else 0.0,
            "gbit_per_second_out": round(facts.traffic.out, 3) if facts.answers else 0.0,
            "syncer_restarts": report.restarts,
            "checkpoint": _checkpoint(facts.old.checkpoint, report),
            "ledger": ledger.shown(ledger.add(report.ledger.values()), report.fragments)
            if report.ledger
            else facts.old.ledger,
            "final_checkpoint": report.final_checkpoint,
            "estimated_seconds_left": _seconds_left(facts, report, now),
        }
    return facts.old.model_copy(update=update)


def _checkpoint(old: CheckpointStatus, report: SyncerStatus) -> CheckpointStatus:
    """As the coordinating shard says; what was known while that one has not been heard of."""
    told = report.checkpoint
    if not told.uri:
        return old
    return CheckpointStatus(step=told.newest_step, uri=told.uri, error=clip(told.error))


def _fraction(facts: RunFacts, report: SyncerStatus) -> float:
    """Done of the target, 0 to 1: whichever part of it comes first."""
    target = facts.spec.target
    parts = [report.global_step / target.global_steps] if target.global_steps else []
    parts += [report.tokens / target.tokens] if target.tokens else []
    return min(max(parts, default=0.0), 1.0)


def _percent(facts: RunFacts, report: SyncerStatus) -> int:
    return int(100 * _fraction(facts, report))


def _seconds_left(facts: RunFacts, report: SyncerStatus, now: float) -> int | None:
    """By the mean speed since the start."""
    done = _fraction(facts, report)
    if done <= 0 or facts.old.start_time is None:
        return None
    return round((now - parse_time(facts.old.start_time)) * (1 - done) / done)


def _last_heal(facts: RunFacts) -> float | None:
    """Seconds of the heal whose failure is the latest."""
    heals = [
        (unit.last_failure.time, unit.last_heal_seconds)
        for unit in facts.units.values()
        if unit.last_failure is not None and unit.last_heal_seconds is not None
    ]
    return max(heals)[1] if heals else None


def with_problem(status: TrainingRunStatus, reason: str, message: str, now: float) -> TrainingRunStatus:
    """The same status, Degraded for a reason that only the API server knew."""
    states: dict[str, State] = {
        item.type: (item.status, item.reason, item.message) for item in status.conditions
    }
    states["Degraded"] = state(True, reason, message)
    conditions = transition(status.conditions, states, status.observed_generation, now)
    return status.model_copy(update={"message": clip(message), "conditions": conditions})


def invalid(old: TrainingRunStatus, generation: int, message: str, now: float) -> TrainingRunStatus:
    """For a spec that this version of the operator cannot read."""
    states: dict[str, State] = {
        "Ready": state(False, "SpecInvalid", message),
        "Progressing": state(False, "SpecInvalid"),
        "Degraded": state(True, "SpecInvalid", message),
        "Suspended": state(None, "SpecInvalid"),
        "Complete": state(False, "SpecInvalid"),
        "Failed": state(False, "SpecInvalid"),
        "Stalled": state(True, "SpecInvalid", message),
    }
    conditions = transition(old.conditions, states, generation, now)
    return old.model_copy(
        update={"message": clip(message), "conditions": conditions, "observed_generation": generation}
    )
