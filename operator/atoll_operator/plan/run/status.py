"""The status of a run in words: its phase and its conditions."""

from __future__ import annotations

from atoll_operator.api.conditions import Condition
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import RunPhase, TrainingRunStatus
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import HOLDS, State, clip, find, state, states_of, transition
from atoll_operator.plan.run.figures import RunFacts, figures
from atoll_operator.plan.run.shards import UNAVAILABLE
from atoll_operator.plan.run.start import BEFORE
from atoll_operator.plan.run.suspension import Suspension


def describe(facts: RunFacts, now: float, ended: tuple[str, str, str] | None = None) -> TrainingRunStatus:
    """The status now; `ended` is phase, reason and message of a run that is over, reason empty if it was before."""
    shown = figures(facts)
    if ended is not None:
        return _over(facts, shown, *ended, now)
    if facts.suspension is not None:
        phase: RunPhase = "Suspended" if facts.suspension.done else "Suspending"
        states = _suspended(facts.suspension)
    else:
        phase = _phase(facts)
        states = _running(facts)
    states = {**states, **facts.evaluated}
    told = [text for name, (status, _, text) in states.items() if text and _matters(name, status)]
    message = "; ".join(dict.fromkeys(told))
    if not message and facts.syncer is not None:
        message = facts.syncer.message
    return shown.model_copy(
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
    trained = report.phase == "Running" and report.global_step > 0
    if facts.learning or (trained and not (facts.starts and facts.shards_down)):
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
        **(_remembered(facts) if facts.awaited else {}),
    }


def _remembered(facts: RunFacts) -> dict[str, State]:
    """What follows from the syncer's answer, as it stands: an operator that starts must not call a sound run ill."""
    if facts.old.phase in ("Suspending", "Suspended"):
        return {}
    known = states_of(facts.old.conditions)
    return {name: known[name] for name in ("Ready", "Progressing", "Degraded") if name in known}


def _unanswered(facts: RunFacts) -> State:
    """The syncer does not answer: it starts, it is down, or it shows a wrong certificate."""
    reason = "SyncerStarting" if _to_come(facts) else facts.feed_reason or UNAVAILABLE
    return state(False, reason, facts.syncer_wait or facts.feed_message)


def _to_come(facts: RunFacts) -> bool:
    """The syncer does not answer yet, and nothing is wrong with that."""
    return facts.starts and not facts.answers and facts.feed_reason in ("", UNAVAILABLE)


def _degraded(facts: RunFacts) -> State:
    report = facts.syncer
    if facts.taken:
        return state(
            True, "NameTaken", f"units of another run are called {', '.join(facts.taken)}; use another name"
        )
    if not facts.answers and not _to_come(facts):
        train = "" if facts.old.phase in BEFORE else "units train on without merges"
        text = "; ".join(filter(None, (facts.syncer_wait or facts.feed_message, train)))
        return state(True, facts.feed_reason or UNAVAILABLE, text)
    begun = facts.old.global_step > 0 or (report is not None and report.global_step > 0)
    if facts.shards_down and begun and (facts.learning or not facts.starts):
        text = "; ".join(filter(None, (facts.shards_down, facts.syncer_wait)))
        return state(
            True, "SyncerShardDown", f"{text}; units train on, tensors of these shards are not merged"
        )
    if report is not None and report.checkpoint.error:
        return state(True, "CheckpointFailed", report.checkpoint.error)
    failed = sorted(name for name, unit in facts.units.items() if unit.phase == "Failed")
    if failed:
        return state(True, "UnitFailed", f"{', '.join(failed)}: {facts.units[failed[0]].message}")
    held = {name: hold for name, unit in sorted(facts.units.items()) if (hold := _hold(unit)) is not None}
    healing = sorted(name for name, unit in facts.units.items() if unit.phase == "Healing")
    if healing and not held.keys() & set(healing):
        return state(True, "UnitHealing", f"{', '.join(healing)}: {facts.units[healing[0]].message}")
    if held:
        name = min(held, key=lambda name: (name not in healing, name))
        return state(True, held[name].reason, f"{name}: {held[name].message}")
    return state(False, "AsExpected")


def _hold(unit: LearnerUnitStatus) -> Condition | None:
    """What the unit waits for until somebody else acts."""
    for part in ("Scheduled", "PodsReady"):
        found = find(unit.conditions, part)
        if found is not None and found.status == "False" and found.reason in HOLDS:
            return found
    return None


def _suspended(suspension: Suspension) -> dict[str, State]:
    reason = "Suspended" if suspension.done else "Suspending"
    return {
        "Ready": state(False, reason, "" if suspension.done else suspension.message),
        "Progressing": state(False, reason),
        "Degraded": state(False, reason),
        "Suspended": state(
            suspension.done, suspension.reason if suspension.done else reason, suspension.message
        ),
        "Complete": state(False, "NotFinished"),
        "Failed": state(False, "NotFailed"),
        "Stalled": state(False, "NotStalled"),
    }


def _over(
    facts: RunFacts, shown: TrainingRunStatus, phase: str, reason: str, message: str, now: float
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
        **facts.evaluated,
    }
    return shown.model_copy(
        update={
            "phase": phase,
            "message": clip(message),
            "tokens_per_second": 0.0,
            "gbit_per_second_in": 0.0,
            "gbit_per_second_out": 0.0,
            "estimated_seconds_left": None,
            "progress_percent": 100 if complete else shown.progress_percent,
            "completion_time": facts.old.completion_time or format_time(now),
            "conditions": transition(facts.old.conditions, states, facts.generation, now),
        }
    )


def with_problem(
    status: TrainingRunStatus, old: TrainingRunStatus, condition: str, message: str, now: float
) -> TrainingRunStatus:
    """The same status with an object that the API server refused; `old` is the one before this pass.

    Args:
        condition: what suffers from it.
    """
    degraded = condition == "Degraded"
    shown = states_of(status.conditions) | {condition: state(degraded, "ObjectRefused", message)}
    conditions = transition(old.conditions, shown, status.observed_generation, now)
    told = clip(message) if degraded else status.message
    return status.model_copy(update={"message": told, "conditions": conditions})


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
