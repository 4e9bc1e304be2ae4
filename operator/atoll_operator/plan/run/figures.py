"""Figures of a run's status, from its syncer's report and its units' statuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, LEARNER
from atoll_operator.api.trainingrun import CheckpointStatus, TrainingRunStatus
from atoll_operator.plan import ledger
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.conditions import clip
from atoll_operator.plan.run.evaluation import EvaluationPlan
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.quorum import QuorumLost
from atoll_operator.plan.run.rollout import Rollout
from atoll_operator.plan.run.sums import carried, unit_sums
from atoll_operator.plan.run.suspension import Suspension
from atoll_runtime.contract import SyncerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What was observed and decided, from which the status follows."""

    run: RunObserved
    old: TrainingRunStatus
    """The status as last written, with the times and choices of this pass."""
    units: Mapping[str, UnitFacts]
    """Units that name this run."""
    wanted: int
    """Units that the spec asks for, and those that users created."""
    learning: int
    """Those of them that learn."""
    taken: tuple[str, ...]
    """Names of wanted units that units of another run have."""
    rollout: Rollout
    suspension: Suspension | None
    """None if the run is not to be suspended."""
    quorum_lost: QuorumLost | None
    starting: bool
    """The run starts, and its syncer or a shard of it may not be there yet."""
    awaited: bool
    """This operator has just started to poll the syncer and knows only the status as last written."""
    syncer_wait: str
    """Why the syncer's pods do not run."""
    evaluation: EvaluationPlan


def figures(facts: RunFacts) -> TrainingRunStatus:
    """The status with its figures.

    Those of the syncer stay as they are without a report, and while the syncer starts: it has none of its own until it
    has read its journal.
    """
    run, old, units = facts.run, facts.old, facts.units.values()
    over = old.phase in ("Complete", "Failed")
    ready = old.units_ready if over else facts.learning
    update: dict[str, object] = {
        "units": len(units),
        "units_ready": ready,
        "units_wanted": facts.wanted,
        "units_updated": len(units) - len(facts.rollout.outdated),
        "units_summary": f"{ready}/{facts.wanted}",
        "selector": f"{LABEL_RUN}={run.name},{LABEL_COMPONENT}={LEARNER}",
        "last_heal_seconds": _last_heal(facts),
        "evaluation": facts.evaluation.status,
        "observed_generation": run.generation,
        **unit_sums(old, [unit.status for unit in units if unit.ours]),
    }
    report = run.syncer.status
    if report is not None and report.phase != "Starting" and not over:
        update |= _reported(facts, report)
    return old.model_copy(update=update)


def _reported(facts: RunFacts, report: SyncerStatus) -> dict[str, object]:
    """Figures that the syncer reports. Rates are 0 while it does not answer.

    Progress does not fall while a shard is down: an operator that has just started does not know how far that shard is.
    """
    old, spec, syncer = facts.old, facts.run.spec, facts.run.syncer
    earlier_in = carried(old.bytes_in, old.earlier_bytes_in, report.bytes_in)
    earlier_out = carried(old.bytes_out, old.earlier_bytes_out, report.bytes_out)
    least = old if syncer.down else TrainingRunStatus()
    done = max(_fraction(facts, report), least.progress_percent / 100)
    return {
        "global_step": max(report.global_step, least.global_step),
        "target_steps": report.target_steps or spec.target.global_steps,
        "progress_percent": int(100 * done),
        "tokens": max(report.tokens, least.tokens),
        "tokens_per_second": round(report.tokens_per_second, 1) if syncer.answers else 0.0,
        "loss": old.loss if report.loss is None else round(report.loss, 4),
        "quorum": report.quorum,
        "bytes_in": earlier_in + report.bytes_in,
        "bytes_out": earlier_out + report.bytes_out,
        "earlier_bytes_in": earlier_in,
        "earlier_bytes_out": earlier_out,
        "gbit_per_second_in": round(syncer.traffic.into, 3) if syncer.answers else 0.0,
        "gbit_per_second_out": round(syncer.traffic.out, 3) if syncer.answers else 0.0,
        "syncer_restarts": report.restarts,
        "checkpoint": _checkpoint(old.checkpoint, report),
        "ledger": ledger.shown(ledger.add(report.ledger.values()), report.fragments)
        if report.ledger
        else old.ledger,
        "final_checkpoint": report.final_checkpoint,
        "estimated_seconds_left": _seconds_left(done, report) if syncer.answers else None,
    }


def _checkpoint(old: CheckpointStatus, report: SyncerStatus) -> CheckpointStatus:
    """As shard 0 reports it; the last known one while shard 0 has not been heard of."""
    checkpoint = report.checkpoint
    if not checkpoint.uri:
        return old
    return CheckpointStatus(step=checkpoint.newest_step, uri=checkpoint.uri, error=clip(checkpoint.error))


def _fraction(facts: RunFacts, report: SyncerStatus) -> float:
    """Progress towards the target, 0 to 1: in steps or tokens, whichever is further."""
    target = facts.run.spec.target
    parts = [report.global_step / target.global_steps] if target.global_steps else []
    parts += [report.tokens / target.tokens] if target.tokens else []
    return min(max(parts, default=0.0), 1.0)


def _seconds_left(done: float, report: SyncerStatus) -> int | None:
    """At the present speed, if further steps take as many tokens as those so far."""
    if done <= 0 or report.tokens <= 0 or report.tokens_per_second <= 0:
        return None
    return round(report.tokens * (1 - done) / done / report.tokens_per_second)


def _last_heal(facts: RunFacts) -> float | None:
    """Seconds of the heal that began last."""
    heals = [unit.status.last_heal for unit in facts.units.values() if unit.status.last_heal is not None]
    last = max(heals, key=lambda heal: parse_time(heal.started_at), default=None)
    return last.seconds if last is not None else None
