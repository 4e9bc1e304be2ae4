"""What in a syncer's report has to be acted on at once; progress figures are written at a bounded rate instead."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_runtime.contract import SyncerStatus, UnitReport

RUN_FIGURES = (
    "message", "global_step", "tokens", "loss", "tokens_per_second", "quorum", "rounds", "real_interval", "bytes_in",
    "bytes_out", "units", "ledger", "time",
)  # fmt: skip
"""Fields of a `SyncerStatus` that can wait, or that are compared by themselves."""
UNIT_FIGURES = (
    "step", "inner_steps", "tokens", "loss", "tokens_per_second", "step_seconds", "contributions", "staleness",
)  # fmt: skip
"""Fields of a `UnitReport` that can wait. That a unit has a loss for the first time cannot."""


@dataclass(frozen=True, slots=True)
class StatusDiff:
    """What one poll of all shards brought."""

    run: bool = False
    """Reconcile the run now."""
    every_unit: bool = False
    """Reconcile all units of the run now, including those that the syncer does not know."""
    units: frozenset[str] = frozenset()
    """Units to reconcile now."""

    def __bool__(self) -> bool:
        return self.run


def compare(old: SyncerState, new: SyncerState) -> StatusDiff:
    """From one state to the next. All units are due if the syncer or a shard comes, goes or changes its phase."""
    if _serving(old) != _serving(new):
        return StatusDiff(run=True, every_unit=True)
    before, after = _units(old.status), _units(new.status)
    units = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return StatusDiff(run=bool(units) or _run(old) != _run(new), units=frozenset(units))


def _serving(state: SyncerState) -> tuple[bool, bool, str]:
    return state.answers, bool(state.down), state.status.phase if state.status is not None else ""


def _run(state: SyncerState) -> object:
    """The state of the run without its figures."""
    status = state.status
    if status is not None:
        checkpoint = status.checkpoint.model_copy(update={"orderable": 0})
        status = status.model_copy(update=dict.fromkeys(RUN_FIGURES) | {"checkpoint": checkpoint})
    return state.reason, state.message, state.down, status


def _units(status: SyncerStatus | None) -> dict[str, UnitReport]:
    """The reports of units without their figures."""
    still = dict.fromkeys(UNIT_FIGURES)
    reports = status.units.items() if status is not None else ()
    return {name: report.model_copy(update=still | {"loss": report.loss is None}) for name, report in reports}
