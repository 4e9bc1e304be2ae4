"""What to do for one TrainingRun: its objects, its units, its status, its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from atoll_operator.api.group import Object
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunStatus
from atoll_operator.plan.conditions import Notice, earliest, format_time, skew_notices
from atoll_operator.plan.limits import LOOK_SECONDS, NAMESPACE_LIMIT, fitting
from atoll_operator.plan.nodes import of_lost_nodes
from atoll_operator.plan.pods.names import evaluator, syncer
from atoll_operator.plan.pods.view import Removal
from atoll_operator.plan.run import completion
from atoll_operator.plan.run.completion import Outcome, plan_completion
from atoll_operator.plan.run.elastic import run_streams, unit_bodies, unit_specs
from atoll_operator.plan.run.evaluation import EvaluationPlan, plan_evaluation
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.rollout import of_another_kind, plan_rollout
from atoll_operator.plan.run.status import RunFacts, describe
from atoll_operator.plan.run.suspension import plan_suspension
from atoll_operator.plan.run.syncer_state import CheckpointOrder
from atoll_operator.plan.run.workloads import COPIED, config_map, evaluator_objects, outdated, syncer_objects


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What to do for a run: delete it, or delete units and carry out the other fields in their order."""

    delete_run: bool = False
    """Whether its time to live after its end is over."""
    poll_syncer: bool = False
    poll_evaluator: bool = False
    checkpoint: CheckpointOrder | None = None
    """A checkpoint that the syncer should save."""
    apply: tuple[Object, ...] = ()
    """Objects of the run and its syncer."""
    remove_pods: tuple[Removal, ...] = ()
    """Pods of an older template, and pods on lost nodes, so that their StatefulSet creates them again."""
    apply_units: tuple[Object, ...] = ()
    """LearnerUnits to create, or to change to a new spec."""
    delete: tuple[tuple[str, str], ...] = ()
    """Kinds and names of objects that the run does not need, if they exist."""
    delete_units: tuple[UnitFacts, ...] = ()
    apply_evaluator: tuple[Object, ...] = ()
    """Objects of the evaluator. They come last because training does not depend on them."""
    status: TrainingRunStatus
    notices: tuple[Notice, ...] = ()
    wake: float | None = None
    """Unix seconds at which time alone changes the plan."""


def plan_run(run: RunObserved, now: float) -> RunPlan:
    spec, old, units, streams = run.spec, run.status, run.own_units, run_streams(run)
    wanted = unit_specs(run)
    expected = wanted.keys() | {name for name, unit in units.items() if unit.by_hand}
    present = {name: unit.status for name, unit in units.items() if name in expected and unit.ours}
    new = fitting(run.room, wanted, run.units)
    rollout = plan_rollout(run, wanted, new, now)
    suspension = plan_suspension(run, now)
    suspended = suspension is not None and suspension.done
    stopped = suspension is not None and suspension.done and suspension.written
    lost = completion.quorum_lost(spec, len(expected), present, old.quorum_lost_time, now)
    outcome = plan_completion(run, lost, now)
    phase = outcome.phase if outcome is not None else ""
    evaluation = plan_evaluation(run, phase, suspended or bool(run.waits), now)
    starts_until = completion.start_end(spec, old, now)
    facts = RunFacts(
        run=run,
        wanted=len(expected),
        learning=sum(unit.learns for name, unit in units.items() if name in present),
        taken=tuple(name for name in wanted if name in run.units and name not in units),
        rollout=rollout,
        suspension=suspension,
        quorum_lost=lost,
        starting=starts_until is not None,
        evaluation=evaluation,
    )
    changes = {
        "start_time": old.start_time or (None if run.waits else format_time(now)),
        "hosts": old.hosts if run.room.hosts is None else run.room.hosts,
        "syncer_shards": spec.syncer.shards,
        "syncer_layout": run.layout,
        "runtime": RuntimeStatus(
            image=run.settings.image, asked=spec.image or "", environment=dict(run.settings.environment)
        ),
        "streams": streams,
        "suspend_time": suspension.since if suspension else old.suspend_time if run.waits else None,
        "suspended_seconds": completion.suspended_seconds(run, now),
        "quorum_lost_time": lost.since if lost is not None else None,
    }
    plan = _both_workloads(run, evaluation, describe(facts, outcome, changes, now), now)
    if outcome is not None:
        return _ended(run, outcome, plan, now)
    if run.waits:
        told = tuple(notices(run, plan.status, None))
        return RunPlan(status=plan.status, notices=told, wake=now + LOOK_SECONDS)
    syncer_set = syncer_objects(run, 0 if stopped else spec.syncer.shards)
    # What another version has made of a pool is better than what this one would make of a pool that it does not know.
    changing = rollout.now if run.knows("pools", "podTemplate") else ()
    new -= rollout.held
    checkpoint = suspension.checkpoint if suspension is not None else wanted_checkpoint(run)
    return replace(
        plan,
        poll_syncer=not stopped,
        checkpoint=checkpoint,
        apply=(*kept_config(run), *syncer_set),
        remove_pods=(*outdated(run.syncer_pods, syncer_set), *plan.remove_pods),
        apply_units=unit_bodies(
            run,
            {
                name: unit
                for name, unit in wanted.items()
                if name in new or (name in changing and not of_another_kind(run.units[name], unit))
            },
            streams,
        ),
        delete_units=tuple(
            unit
            for name, unit in units.items()
            if unit.owned and (name not in wanted or of_another_kind(unit, wanted[name]))
        ),
        notices=(*notices(run, plan.status, checkpoint), *plan.notices),
        wake=earliest(
            plan.wake,
            now + LOOK_SECONDS if run.room.message else None,
            completion.deadline_end(run, now),
            suspension.wake if suspension is not None else None,
            starts_until,
            lost.fails_at if lost is not None else None,
        ),
    )


def _both_workloads(
    run: RunObserved, evaluation: EvaluationPlan, status: TrainingRunStatus, now: float
) -> RunPlan:
    """The plan for the evaluator, and for pods on lost nodes, whether or not the run has ended."""
    pods, recovery = (*run.syncer_pods, *run.evaluator_pods), run.spec.recovery
    lost, wake = of_lost_nodes(pods, run.nodes, recovery.node_lost_seconds, recovery.force_delete, now)
    evaluator_set = evaluator_objects(run, evaluation.replicas)
    return RunPlan(
        poll_evaluator=bool(evaluation.replicas),
        remove_pods=(*lost, *outdated(run.evaluator_pods, evaluator_set)),
        delete=() if evaluator_set else _workload(evaluator(run.name)),
        apply_evaluator=evaluator_set,
        status=status,
        notices=evaluation.notices,
        wake=earliest(evaluation.wake, wake),
    )


def _ended(run: RunObserved, outcome: Outcome, plan: RunPlan, now: float) -> RunPlan:
    """The end is written before the syncer is touched. A failed run keeps its journals, a complete one does not."""
    failed = outcome.phase == "Failed"
    if run.status.phase != outcome.phase:
        notice = Notice("Warning" if failed else "Normal", outcome.reason, outcome.message)
        return replace(plan, notices=(notice, *plan.notices))
    deleted_at = completion.deletion_time(run, plan.status, now)
    if deleted_at is not None and deleted_at <= now:
        return RunPlan(status=plan.status, delete_run=True)
    plan = replace(plan, wake=earliest(deleted_at, plan.wake))
    if failed:
        return replace(plan, apply=(*kept_config(run), *syncer_objects(run, 0)))
    budget = ("PodDisruptionBudget", syncer(run.name))
    return replace(plan, delete=(*_workload(syncer(run.name)), budget, *plan.delete))


def _workload(name: str) -> tuple[tuple[str, str], ...]:
    return ("StatefulSet", name), ("Service", name)


CHECKPOINT = "atoll.dev/checkpoint"
"""Annotation by which a user wants a checkpoint. Its value is the run's global step then; a later one counts too."""
DIGITS = 15


def wanted_checkpoint(run: RunObserved) -> CheckpointOrder | None:
    """A checkpoint that a user wants and that does not exist yet."""
    text, report = run.annotations.get(CHECKPOINT, ""), run.syncer.status
    if report is None or not text.isdecimal() or len(text) > DIGITS:
        return None
    order = CheckpointOrder(int(text))
    return None if order.stands(report) else order


def kept_config(run: RunObserved) -> tuple[Object, ...]:
    """The ConfigMap. Nothing if it exists and this version does not fully know the sections that pods read from it."""
    known = run.knows(*COPIED, "recovery", "syncer")
    return (config_map(run),) if known or not run.configured else ()


def notices(run: RunObserved, new: TrainingRunStatus, wanted: CheckpointOrder | None) -> Iterator[Notice]:
    """Events for what a user has changed between two statuses, for a checkpoint that a user wants, for the namespace's
    limits, and for unknown fields."""
    old = run.status
    if old.suspend_time is None and new.suspend_time is not None:
        yield Notice("Normal", "SuspendRequested", "spec.suspend is true", new.suspend_time)
    if old.suspend_time is not None and new.suspend_time is None:
        yield Notice("Normal", "ResumeRequested", "spec.suspend is false", old.suspend_time)
    if old.observed_generation > 0 and old.units_wanted != new.units_wanted:
        change = f"{new.units_wanted} units are wanted, {old.units_wanted} were"
        yield Notice("Normal", "Scaled", change, f"{new.observed_generation}")
    if wanted is not None and not wanted.last:
        text = f"a checkpoint of global step {wanted.step} or later is wanted"
        yield Notice("Normal", "CheckpointRequested", text, f"{wanted.step}")
    if run.room.message:
        yield Notice("Warning", NAMESPACE_LIMIT, run.room.message, f"{run.generation}")
    yield from skew_notices(run.unknown, run.generation)
