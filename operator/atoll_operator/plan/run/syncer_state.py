"""What is known of a run's syncer: its last report, whether it answers now, the checkpoint it was asked for. A change
of its state has to be acted on at once, unless only progress figures changed, which are written at a bounded rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport

UNAVAILABLE = "SyncerUnavailable"
MISSES = 2
"""Failed polls in a row after which the syncer counts as unavailable; a single one may be a lost packet."""
RUN_NEWS = (
    "run_uid", "target_steps", "restarts", "shard", "shards", "fragments", "checkpoint", "final_checkpoint", "down",
)  # fmt: skip
"""Fields of a `SyncerStatus` whose change is acted on at once, besides its phase and its units."""
UNIT_NEWS = (
    "incarnation", "hosts", "state", "seeded_step", "seed_message", "first_merge_time", "beginning", "suspect",
    "link.codec",
)  # fmt: skip
"""The same for a `UnitReport`. `unit_news` adds whether it has a loss and slow steps, and how its link is judged."""


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """A checkpoint that shard 0 is, or was, asked for."""

    step: int
    """Global step. A checkpoint of a later step counts too."""
    last: bool = False
    """It holds everything that was merged."""
    refused: str = ""
    """Why shard 0 refuses. If it does not answer, it is asked again."""

    def stands(self, report: SyncerStatus) -> bool:
        newest = report.checkpoint.newest_step
        return report.checkpoint.current if self.last else newest is not None and newest >= self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerState:
    status: SyncerStatus | None = None
    reason: str = ""
    """Why it does not answer; empty while it does, and before the first poll."""
    message: str = ""
    answering_since: float | None = None
    """None while it does not answer. Times are monotonic in a poll's state, and Unix seconds in what plans get."""
    order: CheckpointOrder | None = None
    """The checkpoint that it was asked for when it answered last."""
    heard_at: float | None = field(default=None, compare=False)
    """When the last valid report came."""
    merged: int = field(default=0, compare=False)
    """Token-fragments merged of all units, by the ledger in `status`."""
    deleted: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Of units that it knows and the run does not have: their last incarnations. `status` has their ledgers' sum."""
    misses: int = field(default=0, compare=False)

    @property
    def answers(self) -> bool:
        return self.answering_since is not None

    @property
    def serves(self) -> bool:
        """It answers and has read its journal."""
        return self.answers and self.status is not None and self.status.phase != "Starting"

    @property
    def down(self) -> str:
        """Which shards do not serve while shard 0 does, and since when."""
        return self.status.down if self.serves and self.status is not None else ""

    @property
    def serving_since(self) -> float | None:
        """Since when all shards serve; None if any does not."""
        return self.answering_since if self.serves and not self.down else None

    @property
    def finishing(self) -> bool:
        """The target is reached and the syncer does the rest: pods may end, and none is replaced. If there are several
        shards, one may still have rounds to merge, so they need the units until the last shard has finished."""
        phase, shards = (self.status.phase, self.status.shards) if self.status is not None else ("", 0)
        return phase == "Finished" or (phase == "Finishing" and shards == 1)

    def report_of(self, unit: str) -> UnitReport | None:
        """What it says of a unit now; None while it does not answer."""
        return self.status.units.get(unit) if self.status is not None and self.answers else None

    def incarnation_of(self, unit: str) -> int:
        """The newest incarnation of this name that it knows; 0 if none, and while it does not answer. A new unit may
        have the name of a deleted one."""
        report, last = self.report_of(unit), self.deleted.get(unit, 0)
        return report.incarnation if report is not None else last if self.answers else 0

    def dated(self, offset: float) -> SyncerState:
        """The state with times of another clock, which is ahead by `offset` seconds."""
        times = {name: getattr(self, name) for name in ("answering_since", "heard_at")}
        return replace(self, **{name: time + offset for name, time in times.items() if time is not None})

    def heard(self, status: SyncerStatus, now: float) -> SyncerState:
        """State after a valid report. A syncer that starts again has no figures yet, so its last ones are kept."""
        if status.phase == "Starting" and self.status is not None:
            change = {"phase": status.phase, "message": status.message, "units": {}}
            status = self.status.model_copy(update=change)
        return SyncerState(
            status=status,
            answering_since=now if self.down else self.answering_since or now,
            heard_at=now,
            merged=sum(ledger.merged for ledger in status.ledger.values()),
        )

    def missed(self, reason: str, message: str) -> SyncerState:
        """State after a failed poll. A wrong answer counts at once. No answer counts only the second time."""
        misses = self.misses + 1
        if reason == UNAVAILABLE and misses < MISSES and not self.reason:
            return replace(self, misses=misses)
        return replace(self, reason=reason, message=message, answering_since=None, misses=misses)


def of_units(report: SyncerStatus, own: Collection[str]) -> tuple[SyncerStatus, dict[str, int]]:
    """The report with these units alone, and the last incarnations of the others. The ledgers of these become one."""
    units, ledger = report.units, report.ledger
    kept = {name: ledger[name] for name in ledger if name in own}
    if len(kept) < len(ledger):
        kept[""] = LedgerReport.total(ledger[name] for name in ledger if name not in own)
    update = {"units": {name: units[name] for name in units if name in own}, "ledger": kept}
    deleted = {name: units[name].incarnation for name in units if name not in own}
    return report.model_copy(update=update), deleted


def serving(state: SyncerState) -> tuple[bool, bool, str]:
    """All units are reconciled when this changes: the syncer or a shard comes, goes or changes its phase."""
    return state.answers, bool(state.down), state.status.phase if state.status is not None else ""


def run_news(state: SyncerState) -> object:
    """The run is reconciled when this changes."""
    return state.reason, state.message, state.order, state.status and attrgetter(*RUN_NEWS)(state.status)


def unit_news(report: UnitReport | None) -> object:
    """A unit and its run are reconciled when this changes."""
    if report is None:
        return None
    link = report.link.load > 0, report.link.period > 1, bool(report.link.advice)
    return attrgetter(*UNIT_NEWS)(report), report.loss is None, bool(report.slow), link


def run_figures(state: SyncerState) -> object:
    """What a run's status shows of a report, besides its time."""
    return state.status and state.status.model_copy(update={"time": 0.0})


def unit_figures(state: SyncerState, unit: str) -> object:
    """What a unit's status shows of a report. Its share of the run's work changes with those of all units and is left
    out."""
    return state.status and (state.status.units.get(unit), state.status.ledger.get(unit))


def next_checkpoint_step(report: SyncerStatus, old: CheckpointOrder | None) -> int:
    """The global step of a checkpoint that holds everything merged, when all learners have ended. It is that of the
    newest checkpoint if this one holds everything. Otherwise it is the step that the run has reached, or one more if a
    checkpoint of that step exists and lacks what was merged after it."""
    newest = -1 if report.checkpoint.newest_step is None else report.checkpoint.newest_step
    if report.checkpoint.current:
        return newest
    if old is not None and old.step >= report.global_step and old.step > newest:
        return old.step
    return max(report.global_step, newest + 1)
