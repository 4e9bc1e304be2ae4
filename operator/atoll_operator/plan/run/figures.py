"""Figures of a run's status, from its syncer's report and its units' statuses. Sums over units do not fall when a unit
is deleted. The part of a sum that the present units do not explain belongs to deleted ones, so no list of them is
needed. A unit's last change is missing if the operator dies before it writes the run's status. So is what other units
add in the second in which a unit is deleted. A heal under way that ends with the deletion of its unit is not
counted."""

from __future__ import annotations

from collections.abc import Sequence

from atoll_operator.api.common import CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import CheckpointStatus, DeletedUnits, TrainingRunStatus
from atoll_operator.plan import cost
from atoll_operator.plan.conditions import clip, parse_time
from atoll_operator.plan.run.observed import RunObserved
from atoll_runtime.contract import LedgerReport, SyncerStatus

LONGEST = 10**9
"""Most seconds that are estimated. Units say how fast they are, and the API server takes no integer above 64 bits."""


def unit_figures(old: TrainingRunStatus, units: Sequence[LearnerUnitStatus]) -> dict[str, object]:
    """`restarts`, `lost` and `deletedUnits` of a run, from its status as last written and its present units."""
    before, nothing = old.deleted_units or DeletedUnits(), CostStatus()
    restarts = sum(unit.restart_count for unit in units)
    deleted_restarts = max(before.restarts, old.restarts - restarts)
    known = cost.names(old.lost)
    present = cost.total([unit.lost for unit in units if unit.lost is not None], known)
    deleted_lost = cost.carried(old.lost or nothing, before.lost or nothing, present)
    deleted = DeletedUnits(restarts=deleted_restarts, lost=None if deleted_lost == nothing else deleted_lost)
    lost = cost.total([deleted_lost, present], known)
    return {
        "restarts": deleted_restarts + restarts,
        "lost": None if lost == nothing else lost,
        "deleted_units": None if deleted == DeletedUnits() else deleted,
    }


def last_heal_seconds(units: Sequence[LearnerUnitStatus]) -> float | None:
    heals = [(parse_time(heal.started_at), heal.seconds) for unit in units if (heal := unit.last_heal)]
    return max(heals)[1] if heals else None


def syncer_figures(run: RunObserved, report: SyncerStatus) -> dict[str, object]:
    """Figures that the syncer reports. Rates are 0 while it does not answer. Progress does not fall while a shard is
    down: shard 0 may have started since and not know how far that shard is."""
    old, target, answers, traffic = run.status, run.spec.target, run.syncer.answers, run.syncer.traffic
    least = old if report.down else TrainingRunStatus()
    done = max(
        least.progress_percent / 100,
        report.global_step / target.global_steps if target.global_steps else 0.0,
        report.tokens / target.tokens if target.tokens else 0.0,
    )
    checkpoint, ledgers = report.checkpoint, report.ledger.values()
    saved = CheckpointStatus(step=checkpoint.newest_step, uri=checkpoint.uri, error=clip(checkpoint.error))
    return {
        "global_step": max(report.global_step, least.global_step),
        "target_steps": report.target_steps or target.global_steps,
        "progress_percent": int(100 * min(done, 1.0)),
        "tokens": max(report.tokens, least.tokens),
        "tokens_per_second": round(report.tokens_per_second, 1) if answers else 0.0,
        "loss": old.loss if report.loss is None else round(report.loss, 4),
        "quorum": report.quorum,
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
        "gbit_per_second_in": round(traffic.into, 3) if answers else 0.0,
        "gbit_per_second_out": round(traffic.out, 3) if answers else 0.0,
        "syncer_restarts": max(report.restarts, least.syncer_restarts),
        "checkpoint": saved if checkpoint.uri else old.checkpoint,  # empty before shard 0 reports
        "ledger": cost.shown_ledger(LedgerReport.total(ledgers), report.fragments) if ledgers else old.ledger,
        "final_checkpoint": report.final_checkpoint,
        "estimated_seconds_left": _seconds_left(min(done, 1.0), report) if answers else None,
    }


def _seconds_left(done: float, report: SyncerStatus) -> int | None:
    """Seconds at the present speed, at most `LONGEST`, if further steps take as many tokens as those so far."""
    if done <= 0 or report.tokens <= 0 or report.tokens_per_second <= 0:
        return None
    return round(min(report.tokens * (1 - done) / done / report.tokens_per_second, LONGEST))
