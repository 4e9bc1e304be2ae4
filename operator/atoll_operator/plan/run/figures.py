"""The figures of a run's status, from what its syncer and its units say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_RUN, LEARNER
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import (
    CheckpointStatus,
    EvaluationStatus,
    TrainingRunSpec,
    TrainingRunStatus,
)
from atoll_operator.plan import ledger
from atoll_operator.plan.clock import parse_time
from atoll_operator.plan.conditions import State, clip
from atoll_operator.plan.run.shards import Traffic
from atoll_operator.plan.run.sums import carried, unit_sums
from atoll_operator.plan.run.suspension import Suspension
from atoll_runtime.contract import SyncerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """All that a run's status follows from."""

    name: str
    generation: int
    spec: TrainingRunSpec
    old: TrainingRunStatus
    wanted: int
    learning: int
    """Units that learn."""
    units: Mapping[str, LearnerUnitStatus]
    sums: Sequence[LearnerUnitStatus]
    """Units whose failures count for this run: not those of an earlier run of the same name."""
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
    starts: bool
    """The run does, and its syncer, or a shard of it, may be still to come."""
    awaited: bool
    """This operator has just begun to ask, and knows no better than the status that it found."""
    shards_down: str
    """Shards that do not serve while others answer, and why."""
    syncer_wait: str
    """Why shards' pods do not run."""
    evaluation: EvaluationStatus | None
    evaluated: Mapping[str, State]
    """The condition `Evaluated`; empty for a run that is not to be evaluated."""


def figures(facts: RunFacts) -> TrainingRunStatus:
    """Counts of units, and the syncer's figures as last known."""
    over = facts.old.phase in ("Complete", "Failed")
    ready = facts.old.units_ready if over else facts.learning
    update: dict[str, object] = {
        "units": len(facts.units),
        "units_ready": ready,
        "units_wanted": facts.wanted,
        "units_updated": len(facts.units) - facts.outdated,
        "selector": f"{LABEL_RUN}={facts.name},{LABEL_COMPONENT}={LEARNER}",
        "units_summary": f"{ready}/{facts.wanted}",
        "last_heal_seconds": _last_heal(facts),
        **unit_sums(facts.old, facts.sums),
        "evaluation": facts.evaluation,
        "observed_generation": facts.generation,
    }
    report = facts.syncer
    if report is not None and not over:
        earlier_in = carried(facts.old.bytes_in, facts.old.earlier_bytes_in, report.bytes_in)
        earlier_out = carried(facts.old.bytes_out, facts.old.earlier_bytes_out, report.bytes_out)
        update |= {
            "global_step": report.global_step,
            "target_steps": report.target_steps or facts.spec.target.global_steps,
            "progress_percent": _percent(facts, report),
            "tokens": report.tokens,
            "tokens_per_second": round(report.tokens_per_second, 1) if facts.answers else 0.0,
            "loss": facts.old.loss if report.loss is None else round(report.loss, 4),
            "quorum": report.quorum,
            "bytes_in": earlier_in + report.bytes_in,
            "bytes_out": earlier_out + report.bytes_out,
            "earlier_bytes_in": earlier_in,
            "earlier_bytes_out": earlier_out,
            "gbit_per_second_in": round(facts.traffic.into, 3) if facts.answers else 0.0,
            "gbit_per_second_out": round(facts.traffic.out, 3) if facts.answers else 0.0,
            "syncer_restarts": report.restarts,
            "checkpoint": _checkpoint(facts.old.checkpoint, report),
            "ledger": ledger.shown(ledger.add(report.ledger.values()), report.fragments)
            if report.ledger
            else facts.old.ledger,
            "final_checkpoint": report.final_checkpoint,
            "estimated_seconds_left": _seconds_left(facts, report),
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


def _seconds_left(facts: RunFacts, report: SyncerStatus) -> int | None:
    """By the speed at which units train now; a step of the clock is taken to hold as many tokens as those so far."""
    done = _fraction(facts, report)
    if not facts.answers or done <= 0 or report.tokens <= 0 or report.tokens_per_second <= 0:
        return None
    return round(report.tokens * (1 - done) / done / report.tokens_per_second)


def _last_heal(facts: RunFacts) -> float | None:
    """Seconds of the heal whose failure is the latest."""
    heals = [
        (parse_time(unit.last_heal.started_at), unit.last_heal.seconds)
        for unit in facts.units.values()
        if unit.last_heal is not None
    ]
    return max(heals)[1] if heals else None
