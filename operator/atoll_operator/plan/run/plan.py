"""What to do for one TrainingRun: its objects, its status, its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atoll_operator.api.group import UNIT_KIND, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.clock import earliest, format_time, parse_time
from atoll_operator.plan.conditions import is_true
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.pods.names import evaluator as evaluator_name
from atoll_operator.plan.pods.names import syncer as syncer_name
from atoll_operator.plan.pods.settings import runtime_status
from atoll_operator.plan.pods.template_hash import outdated
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.removal import Removal, of_lost_nodes
from atoll_operator.plan.run.deadline import deadline_end, suspended_seconds
from atoll_operator.plan.run.evaluation import EvaluationPlan, plan_evaluation
from atoll_operator.plan.run.figures import RunFacts
from atoll_operator.plan.run.objects import (
    RunObserved,
    UnitFacts,
    dealt,
    evaluator_digest,
    evaluator_objects,
    objects,
    syncer_digest,
    unit_body,
    unit_specs,
)
from atoll_operator.plan.run.quorum import QuorumLost, quorum_lost
from atoll_operator.plan.run.rollout import of_another_kind, plan_rollout
from atoll_operator.plan.run.shards import UNAVAILABLE
from atoll_operator.plan.run.start import start_end
from atoll_operator.plan.run.status import describe
from atoll_operator.plan.run.suspension import plan_suspension
from atoll_operator.plan.unit.failure import hindrances, terminated
from atoll_runtime.contract import EXIT_TERMINAL


@dataclass(frozen=True, slots=True)
class Reference:
    """An object to delete, if it is there."""

    kind: str
    name: str
    uid: str = ""
    """Of that very object, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to do, in this order: apply, renew, release, units, remove, retire, write the status; or delete the run."""

    status: TrainingRunStatus
    apply: tuple[Object, ...] = ()
    units: tuple[Object, ...] = ()
    """LearnerUnits to create where there are none, or to give a new spec."""
    evaluator: tuple[Object, ...] = ()
    """Objects to apply after all others: what becomes of them is no matter of the run's training."""
    renew: tuple[Reference, ...] = ()
    """Pods that their StatefulSet is to make anew."""
    release: tuple[Removal, ...] = ()
    """Pods whose lost nodes hold them, and with them their successors."""
    remove: tuple[Reference, ...] = ()
    retire: tuple[Reference, ...] = ()
    """LearnerUnits that are not wanted any more."""
    notices: tuple[Notice, ...] = ()
    wake: float | None = None
    poll: bool = False
    """Whether the syncer is to be asked for its status."""
    evaluate: bool = False
    """Whether the evaluator is to be."""
    cut: bool = False
    """Whether the syncer is to save a cut of all that it has."""
    delete: bool = False
    """The time to live after the end is over."""
    again: bool = False
    """There is more to do once this status is written: the syncer can go."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    phase: Literal["Complete", "Failed"]
    reason: str = ""
    message: str = ""
    known: bool = False
    """It stands in the status already, with its reason and message."""


def plan_run(run: RunObserved, now: float) -> RunPlan:
    """Decides for one run."""
    plan, recovery = _plan(run, now), run.spec.recovery
    pods = (*run.syncer_pods, *run.evaluator_pods)
    release, wake = of_lost_nodes(pods, run.nodes, recovery.node_lost_seconds, recovery.force_delete, now)
    return replace(plan, release=release, wake=earliest(plan.wake, wake))


def _plan(run: RunObserved, now: float) -> RunPlan:
    started = run.status.start_time or format_time(now)
    streams = dealt(run)
    wanted = unit_specs(run, streams)
    units = {name: unit for name, unit in run.units.items() if unit.run == run.name}
    expected = wanted.keys() | {name for name, unit in units.items() if unit.by_hand}
    rollout = plan_rollout(units, wanted, run.spec.quorum.min, _serving_since(run), now)
    suspension = plan_suspension(run, now)
    present = {name: unit.status for name, unit in units.items() if name in expected}
    lost = (
        None
        if run.spec.suspend
        else quorum_lost(run.spec, len(expected), present, run.status.quorum_lost_time, now)
    )
    suspended = suspension is not None and suspension.done
    deadline = deadline_end(run.spec, run.status, now)
    outcome = _outcome(run, lost, deadline, now)
    evaluation = plan_evaluation(run, outcome.phase if outcome is not None else "", suspended, now)
    starts_until = start_end(run.spec, run.status, now)
    facts = RunFacts(
        name=run.name,
        generation=run.generation,
        spec=run.spec,
        old=run.status.model_copy(
            update={
                "start_time": started,
                "syncer_shards": run.spec.syncer.shards,
                "syncer_layout": _layout(run),
                "runtime": runtime_status(run.spec, run.settings),
                "streams": streams,
                "suspend_time": suspension.since if suspension is not None else None,
                "suspended_seconds": suspended_seconds(run.spec, run.status, now),
                "quorum_lost_time": format_time(lost.since) if lost is not None else None,
            }
        ),
        wanted=len(expected),
        learning=sum(is_true(status.conditions, "Learning") for status in present.values()),
        units={name: unit.status for name, unit in units.items()},
        sums=tuple(unit.status for unit in units.values() if unit.ours),
        outdated=len(rollout.outdated),
        rollout=rollout.message,
        suspension=suspension,
        quorum_lost=lost.message if lost is not None else "",
        taken=_taken(run, wanted),
        syncer=run.feed.status,
        feed_reason=run.feed.reason,
        feed_message=run.feed.message,
        traffic=run.feed.traffic,
        answers=run.feed.answers,
        starts=starts_until is not None,
        awaited=run.feed.awaited(run.seen, now),
        shards_down=run.feed.down,
        syncer_wait=hindrances(syncer_name(run.name), _asked(run), run.syncer_pods),
        evaluation=evaluation.status,
        evaluated=evaluation.states,
    )
    if outcome is not None:
        status = describe(facts, now, ended=(outcome.phase, outcome.reason, outcome.message))
        if outcome.known:
            return _ended(run, status, evaluation, now)
        kind: Literal["Normal", "Warning"] = "Normal" if outcome.phase == "Complete" else "Warning"
        notice = Notice(kind, outcome.reason, outcome.message)
        return RunPlan(status=status, notices=(notice, *evaluation.notices), evaluate=evaluation.ask)
    status = describe(facts, now)
    rests = suspension is not None and suspension.done and suspension.written
    shards = 0 if rests else run.spec.syncer.shards
    return RunPlan(
        status=status,
        apply=tuple(objects(run, shards, _layout(run))),
        evaluator=tuple(evaluator_objects(run, evaluation.replicas)),
        renew=(*_anew(run.syncer_pods, syncer_digest(run), shards), *_evaluator_anew(run, evaluation)),
        units=tuple(
            unit_body(run, name, spec)
            for name, spec in wanted.items()
            if name not in run.units or (name in rollout.now and not of_another_kind(run.units[name], spec))
        ),
        retire=tuple(
            Reference(UNIT_KIND, name, unit.uid)
            for name, unit in sorted(units.items())
            if _surplus(unit, wanted)
        ),
        again=suspended != rests,
        remove=_without_evaluator(run, evaluation),
        notices=evaluation.notices,
        poll=not rests,
        evaluate=evaluation.ask,
        cut=suspension is not None and suspension.cut,
        wake=earliest(
            deadline,
            suspension.wake if suspension is not None else None,
            starts_until,
            lost.fails_at if lost is not None else None,
        ),
    )


def _surplus(unit: UnitFacts, wanted: Mapping[str, LearnerUnitSpec]) -> bool:
    """Whether to delete the unit: nobody wants it, or a unit of this name on another kind of slice is wanted."""
    spec = wanted.get(unit.name)
    return unit.owned and (spec is None or of_another_kind(unit, spec))


def _layout(run: RunObserved) -> int:
    """The count of changes of shards, this one included; the same again until the status says so."""
    changed = run.status.syncer_shards not in (0, run.spec.syncer.shards)
    return run.status.syncer_layout + changed


def _taken(run: RunObserved, wanted: Iterable[str]) -> tuple[str, ...]:
    """Names of our units that another run's units bear."""
    return tuple(name for name in wanted if name in run.units and run.units[name].run != run.name)


def _serving_since(run: RunObserved) -> float | None:
    return run.feed.answering_since if run.feed.serves and not run.feed.down else None


def _asked(run: RunObserved) -> int:
    """Pods of the syncer that should be there, for they have been asked in vain."""
    return run.spec.syncer.shards if run.feed.reason == UNAVAILABLE else 0


def _outcome(run: RunObserved, lost: QuorumLost | None, deadline: float | None, now: float) -> Outcome | None:
    if run.status.phase in ("Complete", "Failed"):
        return Outcome(run.status.phase, known=True)
    report = run.feed.status
    if report is not None and report.phase == "Finished":
        target = f"step {report.global_step}, {report.tokens} tokens"
        return Outcome("Complete", "TargetReached", f"{target}; final checkpoint {report.final_checkpoint}")
    if report is not None and report.phase == "Failed":
        return Outcome("Failed", "SyncerFailed", report.message or "the syncer gave no reason")
    dead = next((pod for pod in run.syncer_pods if pod.exit_code == EXIT_TERMINAL), None)
    if not run.spec.suspend and dead is not None:
        reason, message = terminated(dead)
        return Outcome("Failed", reason, f"{dead.name} cannot go on: {message}")
    if deadline is not None and deadline <= now:
        seconds = run.spec.active_deadline_seconds
        return Outcome("Failed", "DeadlineExceeded", f"not finished {seconds} s after the start")
    if lost is not None and lost.fails_at is not None and lost.fails_at <= now:
        waited = f"for {run.spec.recovery.below_quorum_seconds} s"
        return Outcome("Failed", "QuorumLost", f"{lost.counts}, {waited}")
    return None


def _evaluator_anew(run: RunObserved, evaluation: EvaluationPlan) -> tuple[Reference, ...]:
    return _anew(run.evaluator_pods, evaluator_digest(run), evaluation.replicas or 0)


def _anew(pods: Sequence[PodView], digest: str, replicas: int) -> tuple[Reference, ...]:
    return tuple(Reference("Pod", pod.name, pod.uid) for pod in outdated(pods, digest, replicas))


def _without_evaluator(run: RunObserved, evaluation: EvaluationPlan) -> tuple[Reference, ...]:
    """Its StatefulSet last: as long as that is there, the rest may be."""
    name = evaluator_name(run.name)
    return (Reference("Service", name), Reference("StatefulSet", name)) if evaluation.remove else ()


def _ended(run: RunObserved, status: TrainingRunStatus, evaluation: EvaluationPlan, now: float) -> RunPlan:
    """The status stays. A complete run's journal goes with its syncer; a failed run's stays as long as the run."""
    ttl = run.spec.ttl_seconds_after_finished
    gone = None if ttl is None else parse_time(status.completion_time or format_time(now)) + ttl
    if gone is not None and gone <= now:
        return RunPlan(status=status, delete=True)
    plan = RunPlan(
        status=status,
        evaluator=tuple(evaluator_objects(run, evaluation.replicas)),
        renew=_evaluator_anew(run, evaluation),
        remove=_without_evaluator(run, evaluation),
        notices=evaluation.notices,
        evaluate=evaluation.ask,
        wake=earliest(gone, evaluation.wake),
    )
    if run.status.phase == "Failed":
        return replace(plan, apply=tuple(objects(run, 0, _layout(run))))
    name = syncer_name(run.name)
    return replace(plan, remove=(Reference("StatefulSet", name), Reference("Service", name), *plan.remove))
