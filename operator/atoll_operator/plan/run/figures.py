"""Figures of a run's status, from its syncer's report and its units' statuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import CheckpointStatus, TrainingRunStatus
from atoll_operator.plan import cost
from atoll_operator.plan.conditions import clip
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_runtime.contract import LedgerReport, SyncerStatus


def unit_figures(units: Sequence[LearnerUnitStatus]) -> dict[str, object]:
    """`restarts` and `lost` of a run: sums over its present units."""
    lost = [unit.lost for unit in units if unit.lost is not None]
    return {"restarts": sum(unit.restart_count for unit in units), "lost": cost.total(lost) if lost else None}


def last_heal_seconds(units: Iterable[UnitFacts]) -> float | None:
    return max(filter(None, (unit.healed for unit in units)), default=(0.0, None))[1]


def syncer_figures(run: RunObserved, report: SyncerStatus) -> dict[str, object]:
    """Figures that the syncer reports. Rates are 0 while it does not answer. Progress does not fall while a shard is
    down: shard 0 may have started since and not know how far that shard is."""
    old, target, answers = run.status, run.spec.target, run.syncer.answers
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
        "syncer_restarts": max(report.restarts, least.syncer_restarts),
        "checkpoint": saved if checkpoint.uri else old.checkpoint,  # empty before shard 0 reports
        "ledger": cost.shown_ledger(LedgerReport.total(ledgers), report.fragments) if ledgers else old.ledger,
        "final_checkpoint": report.final_checkpoint,
    }
