"""What is known of a run's syncer: its last report, whether it answers now, the checkpoint it was asked for.

A change of its state has to be acted on at once, unless only progress figures changed: these are written at a bounded
rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from operator import attrgetter

from atoll_operator.plan import ledger
from atoll_runtime.contract import SyncerStatus, UnitReport

UNAVAILABLE = "SyncerUnavailable"
TRAFFIC_SECONDS = 30.0
"""Time constant of the moving mean: a few rounds of the slowest fragments."""
MISSES = 2
"""Failed polls in a row after which the syncer counts as unavailable; a single one may be a lost packet."""
CLOCK_STEP_SECONDS = 1.0
"""If the wall clock moves by more than this against the monotonic one between two polls, somebody has set it."""
RUN_NEWS = (
    "run_uid", "target_steps", "restarts", "shard", "shards", "fragments", "checkpoint", "final_checkpoint", "down",
)  # fmt: skip
"""Fields of a `SyncerStatus` whose change is acted on at once, besides its phase and its units."""
UNIT_NEWS = (
    "incarnation", "hosts", "state", "seeded_step", "seed_message", "first_merge_time", "beginning"
)  # fmt: skip
"""The same of a `UnitReport`, besides that it has a loss for the first time."""


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """A checkpoint that shard 0 is, or was, asked for."""

    step: int
    """Global step; a later one is as good."""
    last: bool = False
    """It holds everything that was merged."""
    refused: str = ""
    """Why shard 0 refuses; if it does not answer it is asked again."""

    def stands(self, report: SyncerStatus) -> bool:
        newest = report.checkpoint.newest_step
        return report.checkpoint.current if self.last else newest is not None and newest >= self.step


@dataclass(frozen=True, slots=True)
class Traffic:
    """Gbit/s into and out of the syncer, as a moving mean."""

    into: float = 0.0
    out: float = 0.0

    def next(self, old: SyncerStatus, new: SyncerStatus) -> Traffic:
        """The mean after another report. It stays if no time has passed or the counters started again."""
        seconds = new.time - old.time
        received, sent = new.bytes_in - old.bytes_in, new.bytes_out - old.bytes_out
        if seconds <= 0 or received < 0 or sent < 0 or old.down != new.down:  # then a shard was not counted
            return self
        weight = 1 - math.exp(-seconds / TRAFFIC_SECONDS)
        return Traffic(
            self.into + weight * (received * 8e-9 / seconds - self.into),
            self.out + weight * (sent * 8e-9 / seconds - self.out),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerState:
    """State of the syncer, as shard 0 tells it."""

    status: SyncerStatus | None = None
    """The last valid report."""
    reason: str = ""
    """Why it does not answer; empty while it does, and before the first poll."""
    message: str = ""
    answering_since: float | None = None
    """Unix seconds; None while it does not answer."""
    traffic: Traffic = Traffic()
    order: CheckpointOrder | None = None
    """The checkpoint that it was asked for when it answered last."""
    heard_at: float | None = field(default=None, compare=False)
    """Unix seconds of the last valid report."""
    clock: float | None = field(default=None, compare=False)
    """Wall clock minus monotonic clock at the last valid report, in seconds."""
    merged: int = field(default=0, compare=False)
    """Token-fragments merged of all units, by the ledger in `status`."""
    misses: int = field(default=0, compare=False)
    """Failed polls in a row."""

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
        """Unix seconds since when all shards serve; None if any does not."""
        return self.answering_since if self.serves and not self.down else None

    @property
    def finishing(self) -> bool:
        """The target is reached and the syncer does the rest: pods may end, and none is replaced.

        Of several shards one may still have rounds to merge, so they need the units until the last one has finished.
        """
        status = self.status
        return status is not None and (
            status.phase == "Finished" or (status.phase == "Finishing" and status.shards == 1)
        )

    def report_of(self, unit: str) -> UnitReport | None:
        """What it says of a unit now; None while it does not answer."""
        return self.status.units.get(unit) if self.status is not None and self.answers else None

    def heard(self, status: SyncerStatus, now: float, monotonic: float) -> SyncerState:
        """State after a valid report.

        A syncer that starts again has no figures yet, so its last ones are kept. If the wall clock was set since the
        last report, times noted before cannot be compared with now: the syncer then answers since now. So it does once
        all shards serve again.
        """
        clock = now - monotonic
        was_set = self.clock is not None and abs(clock - self.clock) > CLOCK_STEP_SECONDS
        if status.phase == "Starting" and self.status is not None:
            change = {"phase": status.phase, "message": status.message, "units": {}}
            status = self.status.model_copy(update=change)
        return SyncerState(
            status=status,
            answering_since=now if was_set or self.down else self.answering_since or now,
            heard_at=now,
            clock=clock,
            traffic=self.traffic.next(self.status, status) if self.status is not None else self.traffic,
            merged=ledger.merged(status.ledger.values()),
        )

    def missed(self, reason: str, message: str) -> SyncerState:
        """State after a failed poll. A wrong answer counts at once, no answer only the second time."""
        misses = self.misses + 1
        if reason == UNAVAILABLE and misses < MISSES and not self.reason:
            return replace(self, misses=misses)
        return replace(self, reason=reason, message=message, answering_since=None, misses=misses)

    @property
    def awaited(self) -> bool:
        """No poll has had a result yet, good or bad."""
        return self.status is None and not self.answers and not self.reason


@dataclass(frozen=True, slots=True)
class StatusDiff:
    """What one poll brought."""

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
    news = state.status and attrgetter(*RUN_NEWS)(state.status)
    return state.reason, state.message, state.order, news


def _units(status: SyncerStatus | None) -> dict[str, object]:
    news = attrgetter(*UNIT_NEWS)
    reports = status.units.items() if status is not None else ()
    return {name: (news(report), report.loss is None) for name, report in reports}


def next_checkpoint_step(report: SyncerStatus, old: CheckpointOrder | None) -> int:
    """The global step of a checkpoint that holds everything merged, where every learner has gone.

    This is the newest, or one of the step that the run has reached: one more if a checkpoint of that step exists and
    lacks what was merged after it.
    """
    newest = -1 if report.checkpoint.newest_step is None else report.checkpoint.newest_step
    if report.checkpoint.current:
        return newest
    if old is not None and old.step >= report.global_step and old.step > newest:
        return old.step
    return max(report.global_step, newest + 1)
