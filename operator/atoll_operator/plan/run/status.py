"""The status of a run: its phase, its conditions and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.api.common import RUN_CONDITIONS
from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, LEARNER
from atoll_operator.api.trainingrun import RunPhase, TrainingRunStatus
from atoll_operator.plan.conditions import State, clip, find, format_time, skew, state, states_of, transition
from atoll_operator.plan.limits import NAMESPACE_LIMIT
from atoll_operator.plan.pods.names import syncer
from atoll_operator.plan.run.completion import STARTING_PHASES, Outcome, QuorumLost
from atoll_operator.plan.run.evaluation import EvaluationPlan
from atoll_operator.plan.run.figures import last_heal_seconds, syncer_figures, unit_figures
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.rollout import Rollout
from atoll_operator.plan.run.suspension import Suspension
from atoll_operator.plan.run.syncer_state import UNAVAILABLE
from atoll_operator.plan.unit.waiting import hindrances

FALSE = {
    "Suspended": "NotSuspended", "Complete": "NotFinished", "Failed": "NotFailed", "Stalled": "NotStalled",
}  # fmt: skip
"""Reasons of conditions that do not hold."""


def describe(
    facts: RunFacts, outcome: Outcome | None, changes: Mapping[str, object], now: float
) -> TrainingRunStatus:
    """The status now; `changes` are times and choices of this pass."""
    run, old = facts.run, facts.run.status
    phase, message, end = old.phase, "", dict[str, object]()
    if outcome is not None:
        phase, states, message = outcome.phase, _ended(outcome), outcome.message
        end = {"tokens_per_second": 0.0, "completion_time": old.completion_time or format_time(now)}
        end |= {"progress_percent": 100} if phase == "Complete" else {}
    elif facts.suspension is not None:
        phase, states = "Suspended" if facts.suspension.done else "Suspending", _suspended(facts.suspension)
    elif run.waits:
        phase, states = "Suspended" if phase == "Suspended" else "Pending", _waiting(run)
    else:
        phase, states = _phase(facts), _running(facts)
    states |= {**facts.evaluation.states, **skew(run.unknown)}
    if outcome is None:
        sound = {"Ready": "True", "Degraded": "False"}
        texts = [states[name][2] for name, status in sound.items() if states[name][0] != status]
        report = run.syncer.status
        message = "; ".join(dict.fromkeys(filter(None, texts))) or (report.message if report else "")
    conditions = transition(old.conditions, states, run.generation, now)
    update = {**changes, **_figures(facts), **end, "phase": phase, "message": clip(message)}
    return old.model_copy(update=update | {"conditions": conditions})


def _figures(facts: RunFacts) -> dict[str, object]:
    """The figures. Those of the syncer stay as they are without a report, and while it starts and reads its journal."""
    run, old, units = facts.run, facts.run.status, facts.run.own_units.values()
    over = old.phase in ("Complete", "Failed")
    ready, report = old.units_ready if over else facts.learning, run.syncer.status
    return {
        "units": len(units),
        "units_ready": ready,
        "units_wanted": facts.wanted,
        "units_updated": len(units) - len(facts.rollout.outdated),
        "units_summary": f"{ready}/{facts.wanted}",
        "selector": f"{LABEL_RUN}={run.name},{LABEL_COMPONENT}={LEARNER}",
        "last_heal_seconds": last_heal_seconds(units),
        "evaluation": facts.evaluation.status,
        "observed_generation": run.generation,
        **unit_figures([unit.status for unit in units if unit.ours]),
        **(syncer_figures(run, report) if report and report.phase != "Starting" and not over else {}),
    }


def _states(reason: str, **states: State) -> dict[str, State]:
    """All conditions in their order; those not given are False, for this reason or their own."""
    return {name: states.get(name, state(False, FALSE.get(name, reason))) for name in RUN_CONDITIONS}


def _phase(facts: RunFacts) -> RunPhase:
    report, old = facts.run.syncer.status, facts.run.status
    if report is None:
        return "Starting" if old.phase in STARTING_PHASES else old.phase
    if report.phase == "Finishing":
        return "Finishing"
    trained = report.phase == "Running" and report.global_step > 0
    if facts.learning or (trained and not (facts.starting and facts.run.syncer.down)):
        return "Running"
    return "Starting"


def _running(facts: RunFacts) -> dict[str, State]:
    """The states of a run that is neither over nor suspended. A new operator must not report a sound run as degraded,
    so what depends on the syncer stays as last written."""
    syncer, ready, old = facts.run.syncer, _ready(facts), facts.run.status
    report = syncer.status
    merging = ready[0] == "True" and facts.wanted > 0
    text = facts.rollout.message or (report.message if report else "")
    progressing = state(merging, "Merging" if merging else ready[1], text)
    states = _states("", Ready=ready, Progressing=progressing, Degraded=_degraded(facts))
    polled = report is not None or syncer.answers or syncer.reason  # with a result, good or bad
    if not polled and old.phase not in ("Pending", "Suspending", "Suspended"):
        known = states_of(old.conditions)
        states |= {name: known[name] for name in ("Ready", "Progressing", "Degraded") if name in known}
    return states


def _ready(facts: RunFacts) -> State:
    quorum, syncer = facts.run.spec.quorum.min, facts.run.syncer
    report = syncer.status
    if not facts.wanted:
        return state(True, "ScaledToZero", "no units are wanted; the syncer waits with the state of the run")
    if facts.quorum_lost is not None:
        return state(False, "QuorumLost", facts.quorum_lost.message)
    if not syncer.answers:
        reason = "SyncerStarting" if facts.syncer_starts else syncer.reason or UNAVAILABLE
        return state(False, reason, facts.syncer_wait or syncer.message)
    if report is None or report.phase == "Starting":
        return state(False, "SyncerStarting", report.message if report else "")
    if report.phase == "Finishing":
        return state(True, "Finishing", report.message)
    text = f"{facts.learning} of {facts.wanted} units learn, {quorum} are needed"
    if facts.learning >= quorum:
        return state(True, "QuorumLearning", text)
    return state(False, "QuorumNotMet", f"{text}; {report.message}" if report.message else text)


def _degraded(facts: RunFacts) -> State:
    """The most important problem."""
    run, syncer, report = facts.run, facts.run.syncer, facts.run.syncer.status
    if facts.taken:
        text = f"units of another run are called {', '.join(facts.taken)}; use another name"
        return state(True, "NameTaken", text)
    if not syncer.answers and not facts.syncer_starts:
        train = "" if run.status.phase in STARTING_PHASES else "units train on without merges"
        text = "; ".join(filter(None, (facts.syncer_wait or syncer.message, train)))
        return state(True, syncer.reason or UNAVAILABLE, text)
    if syncer.down and run.merged and (facts.learning or not facts.starting):
        text = "; ".join(filter(None, (syncer.down, facts.syncer_wait)))
        text += "; units train on, tensors of these shards are not merged"
        return state(True, "SyncerShardDown", text)
    if report is not None and report.checkpoint.error:
        return state(True, "CheckpointFailed", report.checkpoint.error)
    if run.room.message:
        return state(True, NAMESPACE_LIMIT, run.room.message)
    return _units_degraded(run.own_units)


def _units_degraded(units: Mapping[str, UnitFacts]) -> State:
    """Units out of restarts, then units that heal by themselves, then units that wait until somebody acts."""
    failed = [name for name, unit in units.items() if unit.status.phase == "Failed"]
    if failed:
        return state(True, "UnitFailed", f"{', '.join(failed)}: {units[failed[0]].status.message}")
    held = {name: hold for name, unit in units.items() if (hold := unit.hold) is not None}
    healing = [name for name, unit in units.items() if unit.status.phase == "Healing"]
    if healing and not held.keys() & set(healing):
        return state(True, "UnitHealing", f"{', '.join(healing)}: {units[healing[0]].status.message}")
    if held:
        name = min(held, key=lambda name: (name not in healing, name))
        return state(True, held[name].reason, f"{name}: {held[name].message}")
    return state(False, "AsExpected")


def _waiting(run: RunObserved) -> dict[str, State]:
    """The states of a run that its namespace's limits keep from beginning, or from going on after a suspension."""
    known = find(run.status.conditions, "Suspended")
    rests = known.status == "True"
    suspended = state(True, known.reason, known.message) if rests else state(None, NAMESPACE_LIMIT)
    return _states(NAMESPACE_LIMIT, Ready=state(False, NAMESPACE_LIMIT, run.waits), Suspended=suspended)


def _suspended(suspension: Suspension) -> dict[str, State]:
    done, message = suspension.done, suspension.message
    reason, why = ("Suspended", suspension.reason) if done else ("Suspending", "Suspending")
    ready = state(done, reason, "" if done else message)
    return _states(reason, Ready=ready, Suspended=state(done, why, message))


def _ended(outcome: Outcome) -> dict[str, State]:
    complete, reason, message = outcome.phase == "Complete", outcome.reason, outcome.message
    failed = state(not complete, reason, "" if complete else message)
    return _states(
        outcome.phase,
        Ready=state(complete, reason, message),
        Suspended=state(False, outcome.phase),
        Complete=state(complete, reason, message if complete else ""),
        Failed=failed,
        Stalled=failed,
    )


def invalid(old: TrainingRunStatus, generation: int, message: str, now: float) -> TrainingRunStatus:
    """The status of a run whose spec this version of the operator cannot read. What says that it is suspended, or how
    it ended, stays: a version that can read it continues from there."""
    reason = "SpecInvalid"
    ready, problem = state(False, reason, message), state(True, reason, message)
    known = states_of(old.conditions)
    states = dict.fromkeys(RUN_CONDITIONS, state(False, reason)) | {"Suspended": state(None, reason)}
    states |= {name: known[name] for name in ("Suspended", "Complete", "Failed") if name in known}
    states |= {"Ready": ready, "Degraded": problem, "Stalled": problem}
    conditions = transition(old.conditions, states, generation, now)
    update = {"message": clip(message), "conditions": conditions, "observed_generation": generation}
    return old.model_copy(update=update)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What was observed and decided, from which the status follows."""

    run: RunObserved
    wanted: int
    """Units that the spec asks for, and those that users created."""
    learning: int
    """Those of them that learn."""
    taken: tuple[str, ...]
    """Names of wanted units that units of another run have."""
    rollout: Rollout
    suspension: Suspension | None
    quorum_lost: QuorumLost | None
    starting: bool
    """The run starts, and its syncer or a shard of it may not exist yet."""
    evaluation: EvaluationPlan

    @property
    def syncer_starts(self) -> bool:
        """The syncer does not answer yet, which is no problem while the run starts."""
        state = self.run.syncer
        return self.starting and not state.answers and state.reason in ("", UNAVAILABLE)

    @property
    def syncer_wait(self) -> str:
        """Why the syncer does not answer. Pods that do not exist count only after a poll has failed."""
        missing = self.run.spec.syncer.shards if self.run.syncer.reason == UNAVAILABLE else 0
        return hindrances(syncer(self.run.name), missing, self.run.syncer_pods)
