"""What in a syncer's report has to be acted on at once; all else is figures, which are written at a bounded rate."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

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
_STATE = attrgetter("reason", "message", "down")
_RUN = attrgetter(*(name for name in SyncerStatus.model_fields if name not in RUN_FIGURES))
_CHECKPOINT = attrgetter("newest_step", "uri", "error", "current")
_UNIT = attrgetter(*(name for name in UnitReport.model_fields if name not in UNIT_FIGURES))


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
    before, after = _units(old), _units(new)
    names = before.keys() | after.keys()
    if _serving(old) != _serving(new):
        return StatusDiff(run=True, every_unit=True, figures=True, known=len(names))
    moved = {name for name in names if before.get(name) != after.get(name)}
    units = {name for name in moved if _unit(before.get(name)) != _unit(after.get(name))}
    return StatusDiff(
        run=bool(units) or _STATE(old) != _STATE(new) or _run(old.status) != _run(new.status),
        units=frozenset(units),
        figures=old.status is not new.status,
        moved=frozenset(moved - units),
        known=len(names),
    )


Entry = tuple[UnitReport | None, LedgerReport | None]


def _units(state: SyncerState) -> dict[str, Entry]:
    status = state.status
    if status is None:
        return {}
    names = {*status.units, *status.ledger}
    return {name: (status.units.get(name), status.ledger.get(name)) for name in names}


def _unit(entry: Entry | None) -> object:
    report = entry[0] if entry is not None else None
    return report and (_UNIT(report), report.loss is None)


def _serving(state: SyncerState) -> tuple[bool, bool, str]:
    return state.answers, bool(state.down), state.status.phase if state.status is not None else ""


def _run(status: SyncerStatus | None) -> object:
    return status and (_RUN(status), _CHECKPOINT(status.checkpoint))
