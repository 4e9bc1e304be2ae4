"""What to do for one TrainingRun: its objects, its units, its status, its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from atoll_operator.api.group import UNIT_KIND, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.clock import earliest, format_time
from atoll_operator.plan.conditions import Notice, is_true
from atoll_operator.plan.nodes import of_lost_nodes
from atoll_operator.plan.pods.names import evaluator, syncer
from atoll_operator.plan.pods.settings import outdated, runtime_status
from atoll_operator.plan.pods.view import PodView, Removal
from atoll_operator.plan.run import completion
from atoll_operator.plan.run.completion import Outcome, plan_completion
from atoll_operator.plan.run.elastic import run_streams, unit_body, unit_specs
from atoll_operator.plan.run.evaluation import EvaluationPlan, plan_evaluation
from atoll_operator.plan.run.objects import evaluator_digest, evaluator_objects, objects, syncer_digest
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.rollout import of_another_kind, plan_rollout
from atoll_operator.plan.run.status import RunFacts, describe
from atoll_operator.plan.run.suspension import plan_suspension


@dataclass(frozen=True, slots=True)
class Reference:
    """An object to delete if it exists, and only the one with this uid, if it is known."""

    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to do for a run: delete it, or carry out the other fields in their order."""

    delete_run: bool = False
    """Its time to live after the end is over."""
    poll_syncer: bool = False
    poll_evaluator: bool = False
    save_checkpoint: bool = False
    """Have the syncer save a checkpoint that holds everything merged."""
    wanted_checkpoint: int | None = None
    """Have the syncer save a checkpoint of this global step or a later one while it trains."""
    apply: tuple[Object, ...] = ()
    """Objects of the run and its syncer."""
    replace_pods: tuple[Reference, ...] = ()
    """Pods made of an older template, to be deleted so that their StatefulSet creates them again."""
    release_pods: tuple[Removal, ...] = ()
    """Pods on lost nodes, which block their successors."""
    apply_units: tuple[Object, ...] = ()
    """LearnerUnits to create, or to change to a new spec."""
    delete: tuple[Reference, ...] = ()
    """Objects that the run does not need any more."""
    delete_units: tuple[Reference, ...] = ()
    apply_evaluator: tuple[Object, ...] = ()
    """Objects of the evaluator. They come last because training does not depend on them."""
    status: TrainingRunStatus
    notices: tuple[Notice, ...] = ()
    again: bool = False
    """Plan again once the status is written: the syncer can then be stopped."""
    wake: float | None = None
    """Unix seconds when the time alone changes the plan."""


def plan_run(run: RunObserved, now: float) -> RunPlan:
    recovery = run.spec.recovery
    pods = (*run.syncer_pods, *run.evaluator_pods)
    release, wake = of_lost_nodes(pods, run.nodes, recovery.node_lost_seconds, recovery.force_delete, now)
    plan = _plan(run, now)
    return replace(plan, release_pods=release, wake=earliest(plan.wake, wake))


def _plan(run: RunObserved, now: float) -> RunPlan:
    spec, old, units, streams = run.spec, run.status, run.own_units, run_streams(run)
    wanted = unit_specs(run, streams)
    expected = wanted.keys() | {name for name, unit in units.items() if unit.by_hand}
    present = {name: unit.status for name, unit in units.items() if name in expected}
    rollout = plan_rollout(units, wanted, spec.quorum.min, run.syncer.serving_since, now)
    suspension = plan_suspension(run, now)
    suspended = suspension is not None and suspension.done
    lost = completion.quorum_lost(spec, len(expected), present, old.quorum_lost_time, now)
    outcome = plan_completion(run, lost, now)
    evaluation = plan_evaluation(run, outcome.phase if outcome is not None else "", suspended, now)
    starts_until = completion.start_end(spec, old, now)
    facts = RunFacts(
        run=run,
        units=units,
        wanted=len(expected),
        learning=sum(is_true(status.conditions, "Learning") for status in present.values()),
        taken=tuple(name for name in wanted if name in run.units and name not in units),
        rollout=rollout,
        suspension=suspension,
        quorum_lost=lost,
        starting=starts_until is not None,
        evaluation=evaluation,
    )
    changes = {
        "start_time": old.start_time or format_time(now),
        "syncer_shards": spec.syncer.shards,
        "syncer_layout": _layout(run),
        "runtime": runtime_status(spec, run.settings),
        "streams": streams,
        "suspend_time": suspension.since if suspension is not None else None,
        "suspended_seconds": completion.suspended_seconds(spec, old, now),
        "quorum_lost_time": lost.since if lost is not None else None,
    }
    status = describe(facts, outcome, changes, now)
    if outcome is not None:
        return _ended(run, outcome, status, evaluation, now)
    stopped = suspended and suspension is not None and suspension.written
    shards, checkpoint = 0 if stopped else spec.syncer.shards, wanted_checkpoint(run)
    return RunPlan(
        poll_syncer=not stopped,
        poll_evaluator=bool(evaluation.replicas),
        save_checkpoint=suspension is not None and suspension.save,
        wanted_checkpoint=checkpoint,
        apply=tuple(objects(run, shards, _layout(run))),
        replace_pods=_outdated(run.syncer_pods, syncer_digest(run), shards)
        + _old_evaluators(run, evaluation),
        apply_units=tuple(
            unit_body(run, name, unit)
            for name, unit in wanted.items()
            if name not in run.units or (name in rollout.now and not of_another_kind(run.units[name], unit))
        ),
        delete=_unwanted_evaluator(run, evaluation),
        delete_units=tuple(_surplus(units, wanted)),
        apply_evaluator=tuple(evaluator_objects(run, evaluation.replicas)),
        status=status,
        notices=(*notices(old, status, checkpoint), *evaluation.notices),
        again=suspended and not stopped,
        wake=earliest(
            completion.deadline_end(spec, old, now),
            suspension.wake if suspension is not None else None,
            starts_until,
            lost.fails_at if lost is not None else None,
        ),
    )


def _ended(
    run: RunObserved, outcome: Outcome, status: TrainingRunStatus, evaluation: EvaluationPlan, now: float
) -> RunPlan:
    """The end is written before anything is deleted. A failed run keeps its journals, a complete one does not."""
    failed, name = outcome.phase == "Failed", syncer(run.name)
    if not outcome.known:
        notice = Notice("Warning" if failed else "Normal", outcome.reason, outcome.message)
        return RunPlan(
            status=status, notices=(notice, *evaluation.notices), poll_evaluator=bool(evaluation.replicas)
        )
    deleted_at = completion.deletion_time(run, status, now)
    if deleted_at is not None and deleted_at <= now:
        return RunPlan(status=status, delete_run=True)
    syncer_objects = () if failed else (Reference("StatefulSet", name), Reference("Service", name))
    return RunPlan(
        poll_evaluator=bool(evaluation.replicas),
        apply=tuple(objects(run, 0, _layout(run))) if failed else (),
        replace_pods=_old_evaluators(run, evaluation),
        delete=(*syncer_objects, *_unwanted_evaluator(run, evaluation)),
        apply_evaluator=tuple(evaluator_objects(run, evaluation.replicas)),
        status=status,
        notices=evaluation.notices,
        wake=earliest(deleted_at, evaluation.wake),
    )


def _surplus(units: Mapping[str, UnitFacts], wanted: Mapping[str, LearnerUnitSpec]) -> Iterator[Reference]:
    """Units that are not wanted, or of whose name a unit on another kind of slice is wanted."""
    for name, unit in units.items():
        if unit.owned and (name not in wanted or of_another_kind(unit, wanted[name])):
            yield Reference(UNIT_KIND, name, unit.uid)


def _layout(run: RunObserved) -> int:
    """Number of changes of `syncer.shards`, including one that the status does not show yet."""
    return run.status.syncer_layout + (run.status.syncer_shards not in (0, run.spec.syncer.shards))


def _outdated(pods: Sequence[PodView], digest: str, replicas: int) -> tuple[Reference, ...]:
    return tuple(Reference("Pod", pod.name, pod.uid) for pod in outdated(pods, digest, replicas))


def _old_evaluators(run: RunObserved, evaluation: EvaluationPlan) -> tuple[Reference, ...]:
    return _outdated(run.evaluator_pods, evaluator_digest(run), evaluation.replicas or 0)


def _unwanted_evaluator(run: RunObserved, evaluation: EvaluationPlan) -> tuple[Reference, ...]:
    """The StatefulSet comes last, because its existence shows that the rest may exist."""
    name = evaluator(run.name)
    return (Reference("Service", name), Reference("StatefulSet", name)) if evaluation.remove else ()


CHECKPOINT = "atoll.dev/checkpoint"
"""Its value is the global step that the run had: a checkpoint of that step or a later one is wanted."""
DIGITS = 15


def wanted_checkpoint(run: RunObserved) -> int | None:
    """The global step of which, or of a later one, a checkpoint has yet to be saved; None if nobody asks."""
    text, report = run.annotations.get(CHECKPOINT, ""), run.syncer.status
    if run.spec.suspend or report is None or not text.isdecimal() or len(text) > DIGITS:
        return None
    newest = report.checkpoint.newest_step
    return int(text) if newest is None or newest < int(text) else None


def notices(old: TrainingRunStatus, new: TrainingRunStatus, wanted: int | None) -> Iterator[Notice]:
    """Events for what a user has changed between two statuses, and for a checkpoint that is wanted."""
    if old.suspend_time is None and new.suspend_time is not None:
        yield Notice("Normal", "SuspendRequested", "spec.suspend is true", new.suspend_time)
    if old.suspend_time is not None and new.suspend_time is None:
        yield Notice("Normal", "ResumeRequested", "spec.suspend is false", old.suspend_time)
    if old.observed_generation > 0 and old.units_wanted != new.units_wanted:
        change = f"{new.units_wanted} units are wanted, {old.units_wanted} were"
        yield Notice("Normal", "Scaled", change, f"{new.observed_generation}")
    if wanted is not None:
        text = f"a checkpoint of global step {wanted} or later is wanted"
        yield Notice("Normal", "CheckpointRequested", text, f"{wanted}")
