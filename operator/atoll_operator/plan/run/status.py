"""The phase and the conditions of a run."""

from __future__ import annotations

from atoll_operator.api.conditions import RUN_CONDITIONS, Condition
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import RunPhase, TrainingRunStatus
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import State, clip, find, state, states_of, transition
from atoll_operator.plan.run.completion import Outcome
from atoll_operator.plan.run.deadline import STARTING_PHASES
from atoll_operator.plan.run.figures import RunFacts, figures
from atoll_operator.plan.run.suspension import Suspension
from atoll_operator.plan.run.syncer_state import UNAVAILABLE
from atoll_operator.plan.unit.waiting import HOLDS

FALSE = {
    "Suspended": "NotSuspended", "Complete": "NotFinished", "Failed": "NotFailed", "Stalled": "NotStalled",
}  # fmt: skip
"""Reasons of conditions that do not hold."""


def describe(facts: RunFacts, outcome: Outcome | None, now: float) -> TrainingRunStatus:
    """The status now."""
    shown = figures(facts)
    if outcome is not None:
        return _over(facts, shown, outcome, now)
    if facts.suspension is not None:
        phase: RunPhase = "Suspended" if facts.suspension.done else "Suspending"
        states = _suspended(facts.suspension)
    else:
        phase, states = _phase(facts), _running(facts)
    states = {**states, **facts.evaluation.states}
    problems = [text for name, (status, _, text) in states.items() if text and _is_problem(name, status)]
    message = "; ".join(dict.fromkeys(problems))
    report = facts.run.syncer.status
    if not message and report is not None:
        message = report.message
    return _with_states(facts, shown, states, now, phase=phase, message=clip(message))


def _with_states(
    facts: RunFacts, shown: TrainingRunStatus, states: dict[str, State], now: float, **update: object
) -> TrainingRunStatus:
    conditions = transition(facts.old.conditions, states, facts.run.generation, now)
    return shown.model_copy(update={"conditions": conditions, **update})


def _states(reason: str, **states: State) -> dict[str, State]:
    """All conditions in their order; those not given are False, for this reason or their own."""
    return {name: states.get(name, state(False, FALSE.get(name, reason))) for name in RUN_CONDITIONS}


def _is_problem(name: str, status: str) -> bool:
    return (name == "Ready" and status != "True") or (name == "Degraded" and status == "True")


def _phase(facts: RunFacts) -> RunPhase:
    report = facts.run.syncer.status
    if report is None:
        return "Starting" if facts.old.phase in STARTING_PHASES else facts.old.phase
    if report.phase == "Finishing":
        return "Finishing"
    trained = report.phase == "Running" and report.global_step > 0
    if facts.learning or (trained and not (facts.starting and facts.run.syncer.down)):
        return "Running"
    return "Starting"


def _running(facts: RunFacts) -> dict[str, State]:
    report = facts.run.syncer.status
    ready = _ready(facts)
    merging = ready[0] == "True" and facts.wanted > 0
    text = facts.rollout.message or (report.message if report else "")
    states = _states(
        "",
        Ready=ready,
        Progressing=state(merging, "Merging" if merging else ready[1], text),
        Degraded=_degraded(facts),
    )
    return states | (_last_known(facts) if facts.awaited else {})


def _ready(facts: RunFacts) -> State:
    quorum, syncer = facts.run.spec.quorum.min, facts.run.syncer
    report = syncer.status
    if not facts.wanted:
        text = "no units are wanted; the syncer waits with the state of the run"
        return state(True, "ScaledToZero", text)
    if facts.quorum_lost is not None:
        return state(False, "QuorumLost", facts.quorum_lost.message)
    if not syncer.answers:
        reason = "SyncerStarting" if _syncer_starts(facts) else syncer.reason or UNAVAILABLE
        return state(False, reason, facts.syncer_wait or syncer.message)
    if report is None or report.phase == "Starting":
        return state(False, "SyncerStarting", report.message if report else "")
    if report.phase == "Finishing":
        return state(True, "Finishing", report.message)
    text = f"{facts.learning} of {facts.wanted} units learn, {quorum} are needed"
    if facts.learning >= quorum:
        return state(True, "QuorumLearning", text)
    return state(False, "QuorumNotMet", f"{text}; {report.message}" if report.message else text)


def _last_known(facts: RunFacts) -> dict[str, State]:
    """Conditions that depend on the syncer, as last written: a new operator must not report a sound run as degraded."""
    if facts.old.phase in ("Suspending", "Suspended"):
        return {}
    known = states_of(facts.old.conditions)
    return {name: known[name] for name in ("Ready", "Progressing", "Degraded") if name in known}


def _syncer_starts(facts: RunFacts) -> bool:
    """The syncer does not answer yet, which is no problem while the run starts."""
    syncer = facts.run.syncer
    return facts.starting and not syncer.answers and syncer.reason in ("", UNAVAILABLE)


def _degraded(facts: RunFacts) -> State:
    """The most important problem."""
    syncer, report = facts.run.syncer, facts.run.syncer.status
    if facts.taken:
        text = f"units of another run are called {', '.join(facts.taken)}; use another name"
        return state(True, "NameTaken", text)
    if not syncer.answers and not _syncer_starts(facts):
        train = "" if facts.old.phase in STARTING_PHASES else "units train on without merges"
        text = "; ".join(filter(None, (facts.syncer_wait or syncer.message, train)))
        return state(True, syncer.reason or UNAVAILABLE, text)
    begun = facts.old.global_step > 0 or (report is not None and report.global_step > 0)
    if syncer.down and begun and (facts.learning or not facts.starting):
        text = "; ".join(filter(None, (syncer.down, facts.syncer_wait)))
        text = f"{text}; units train on, tensors of these shards are not merged"
        return state(True, "SyncerShardDown", text)
    if report is not None and report.checkpoint.error:
        return state(True, "CheckpointFailed", report.checkpoint.error)
    return _units_degraded({name: unit.status for name, unit in sorted(facts.units.items())})


def _units_degraded(units: dict[str, LearnerUnitStatus]) -> State:
    """Units out of restarts, then units that heal by themselves, then units that wait until somebody acts."""
    failed = [name for name, unit in units.items() if unit.phase == "Failed"]
    if failed:
        return state(True, "UnitFailed", f"{', '.join(failed)}: {units[failed[0]].message}")
    held = {name: hold for name, unit in units.items() if (hold := _hold(unit)) is not None}
    healing = [name for name, unit in units.items() if unit.phase == "Healing"]
    if healing and not held.keys() & set(healing):
        return state(True, "UnitHealing", f"{', '.join(healing)}: {units[healing[0]].message}")
    if held:
        name = min(held, key=lambda name: (name not in healing, name))
        return state(True, held[name].reason, f"{name}: {held[name].message}")
    return state(False, "AsExpected")


def _hold(unit: LearnerUnitStatus) -> Condition | None:
    """The condition by which the unit waits until somebody else acts."""
    for part in ("Scheduled", "PodsReady"):
        found = find(unit.conditions, part)
        if found is not None and found.status == "False" and found.reason in HOLDS:
            return found
    return None


def _suspended(suspension: Suspension) -> dict[str, State]:
    reason, done = "Suspended" if suspension.done else "Suspending", suspension.done
    return _states(
        reason,
        Ready=state(done, reason, "" if done else suspension.message),
        Suspended=state(done, suspension.reason if done else reason, suspension.message),
    )


def _over(facts: RunFacts, shown: TrainingRunStatus, outcome: Outcome, now: float) -> TrainingRunStatus:
    phase, reason, message = outcome.phase, outcome.reason, outcome.message
    complete = phase == "Complete"
    verdict = find(facts.old.conditions, phase)
    if outcome.known and verdict is not None:
        reason, message = verdict.reason, verdict.message
    failed = state(not complete, reason, "" if complete else message)
    states = _states(
        phase,
        Ready=state(complete, reason, message),
        Suspended=state(False, phase),
        Complete=state(complete, reason, message if complete else ""),
        Failed=failed,
        Stalled=failed,
    )
    return _with_states(
        facts, shown, {**states, **facts.evaluation.states}, now,
        phase=phase,
        message=clip(message),
        tokens_per_second=0.0,
        gbit_per_second_in=0.0,
        gbit_per_second_out=0.0,
        estimated_seconds_left=None,
        progress_percent=100 if complete else shown.progress_percent,
        completion_time=facts.old.completion_time or format_time(now),
    )  # fmt: skip


def with_refusal(
    status: TrainingRunStatus, old: TrainingRunStatus, condition: str, message: str, now: float
) -> TrainingRunStatus:
    """The status after the API server refused an object.

    Args:
        old: the status before this pass.
        condition: the condition that shows it, `Degraded` or `Evaluated`.
    """
    degraded = condition == "Degraded"
    shown = states_of(status.conditions) | {condition: state(degraded, "ObjectRefused", message)}
    conditions = transition(old.conditions, shown, status.observed_generation, now)
    text = clip(message) if degraded else status.message
    return status.model_copy(update={"message": text, "conditions": conditions})


def invalid(old: TrainingRunStatus, generation: int, message: str, now: float) -> TrainingRunStatus:
    """The status of a run whose spec this version of the operator cannot read."""
    reason = "SpecInvalid"
    problem = state(True, reason, message)
    states = {name: state(False, reason) for name in RUN_CONDITIONS} | {
        "Ready": state(False, reason, message),
        "Degraded": problem,
        "Suspended": state(None, reason),
        "Stalled": problem,
    }
    conditions = transition(old.conditions, states, generation, now)
    return old.model_copy(
        update={"message": clip(message), "conditions": conditions, "observed_generation": generation}
    )
