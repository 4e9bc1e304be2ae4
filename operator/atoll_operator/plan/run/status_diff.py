"""What in a syncer's report has to be acted on at once; all else is figures, which are written at a bounded rate."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport

RUN_FIGURES = frozenset(
    {
        "message", "global_step", "tokens", "loss", "tokens_per_second", "quorum", "rounds", "real_interval",
        "bytes_in", "bytes_out", "checkpoint", "units", "ledger", "time",
    }
)  # fmt: skip
"""Fields of a `SyncerStatus` that can wait, or that are compared part by part."""
UNIT_FIGURES = frozenset(
    {
        "step", "inner_steps", "tokens", "loss", "tokens_per_second", "step_seconds", "contributions", "staleness",
    }
)  # fmt: skip
"""Fields of a `UnitReport` that can wait. That a unit has a loss for the first time cannot."""
RUN_FIELDS = tuple(name for name in SyncerStatus.model_fields if name not in RUN_FIGURES)
UNIT_FIELDS = tuple(name for name in UnitReport.model_fields if name not in UNIT_FIGURES)
CHECKPOINT_FIELDS = ("newest_step", "uri", "error", "current")


@dataclass(frozen=True, slots=True)
class StatusDiff:
    """What one poll of all shards brought."""

    run: bool = False
    """Reconcile the run now."""
    every_unit: bool = False
    """Reconcile all units of the run now, including those that the syncer does not know."""
    units: frozenset[str] = frozenset()
    """Units to reconcile now."""
    figures: bool = False
    """There is a new report, so figures of the run may have moved."""
    moved: frozenset[str] = frozenset()
    """Units of which only figures moved."""
    known: int = 0
    """Units that the syncer knows."""

    def __bool__(self) -> bool:
        return self.run or self.every_unit or self.figures or bool(self.units or self.moved)


def compare(old: SyncerState, new: SyncerState) -> StatusDiff:
    """From one state to the next. All units are due if the syncer or a shard comes, goes or changes its phase."""
    before, after = _units(old.status), _units(new.status)
    names = before.keys() | after.keys()
    if _serving(old) != _serving(new):
        return StatusDiff(run=True, every_unit=True, figures=True, known=len(names))
    nothing: Entry = (None, None)
    moved = {name for name in names if before.get(name, nothing) != after.get(name, nothing)}
    units = {name for name in moved if _unit(*before.get(name, nothing)) != _unit(*after.get(name, nothing))}
    return StatusDiff(
        run=bool(units) or _run(old) != _run(new),
        units=frozenset(units),
        figures=old.status is not new.status,
        moved=frozenset(moved - units),
        known=len(names),
    )


Entry = tuple[UnitReport | None, LedgerReport | None]


def _units(status: SyncerStatus | None) -> dict[str, Entry]:
    names = {*status.units, *status.ledger} if status is not None else set()
    return {name: (status.units.get(name), status.ledger.get(name)) for name in names} if status else {}


def _unit(report: UnitReport | None, _: LedgerReport | None) -> object:
    return report and ([getattr(report, name) for name in UNIT_FIELDS], report.loss is None)


def _serving(state: SyncerState) -> tuple[bool, bool, str]:
    return state.answers, bool(state.down), state.status.phase if state.status is not None else ""


def _run(state: SyncerState) -> object:
    status = state.status
    fields = status and [getattr(status, name) for name in RUN_FIELDS]
    checkpoint = status and [getattr(status.checkpoint, name) for name in CHECKPOINT_FIELDS]
    return state.reason, state.message, state.down, fields, checkpoint
