"""What the shards of a run's syncer say, one by one and together.

A shard owns whole tensors of every fragment and knows no other shard: what is true of the model is what is true of the
shard that is behind. Figures are those of every shard that was heard of, units those that the serving shards see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from atoll_operator.plan import ledger
from atoll_runtime.contract import CheckpointReport, SyncerStatus, UnitReport

SyncerPhase = Literal["Starting", "Running", "Finishing", "Finished", "Failed"]
UNAVAILABLE = "SyncerUnavailable"
TRAFFIC_SECONDS = 30.0
"""Time constant of the mean: a few rounds of the slowest fragments, and still a figure of now."""
AWAITED_SECONDS = 30.0
"""For which an operator that has just begun may know nothing of a syncer: two polls that time out take 15."""
MISSES = 2
"""Polls in a row without an answer after which a shard counts as gone: one alone may be a lost packet."""
STEP_SECONDS = 1.0
"""By which the wall clock moves against the steady one, from one answer to the next, only when somebody sets it."""
GROUPS = 4
"""Different messages of shards that are told at once."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Gbit/s of a shard or of the whole syncer, a moving mean."""

    into: float = 0.0
    out: float = 0.0

    def next(self, old: SyncerStatus, new: SyncerStatus) -> Traffic:
        """After another report; the same where no time went by, and where the counts began anew."""
        seconds = new.time - old.time
        received, sent = new.bytes_in - old.bytes_in, new.bytes_out - old.bytes_out
        if seconds <= 0 or received < 0 or sent < 0:
            return self
        weight = 1 - math.exp(-seconds / TRAFFIC_SECONDS)
        return Traffic(
            self.into + weight * (received * 8e-9 / seconds - self.into),
            self.out + weight * (sent * 8e-9 / seconds - self.out),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """What one shard, or the syncer as a whole, said last, and whether it answers now."""

    status: SyncerStatus | None = None
    """The last good answer."""
    reason: str = ""
    """Why it does not answer; empty while it does, and before anything is known."""
    message: str = ""
    answering_since: float | None = None
    down: str = ""
    """Shards that do not serve while another one answers, and why."""
    traffic: Traffic = Traffic()
    heard: float | None = field(default=None, compare=False)
    """Unix seconds of the last good answer; of several shards, of the one that was heard of longest ago."""
    clock: float | None = field(default=None, compare=False)
    """Unix seconds less those of the steady clock, at a shard's last good answer."""
    merged: int = field(default=0, compare=False)
    """Token-fragments merged of all units, by the ledger in `status`."""
    misses: int = field(default=0, compare=False)
    """Polls in a row that failed; by itself no news."""

    @property
    def answers(self) -> bool:
        return self.answering_since is not None

    @property
    def serves(self) -> bool:
        """It answers and has read its journal."""
        return self.answers and self.status is not None and self.status.phase != "Starting"

    def awaited(self, since: float | None, now: float) -> bool:
        """Nothing has come of asking yet, good or bad, and it is too early to wonder why.

        Args:
            since: when this operator saw the run first; None: now.
        """
        unknown = self.status is None and not self.answers and not self.reason
        return unknown and (since is None or now < since + AWAITED_SECONDS)


@dataclass(frozen=True, slots=True)
class CutOrder:
    """A cut that the shards were asked for."""

    step: int
    refused: str = ""
    """Why they will not take it; one that merely does not answer is asked again."""


def cut_step(shards: Sequence[FeedState], old: CutOrder | None) -> int | None:
    """The global step of the cut that holds all that is merged; None while a shard has yet to be heard of.

    The step that the run has reached, or one more where a cut of that step stands and lacks what came after it; never
    one that a shard has passed, for cuts are recorded in their order.
    """
    reports = [shard.status for shard in shards if shard.status is not None]
    if len(reports) < len(shards):
        return None
    reached = max(max(report.global_step, report.checkpoint.orderable) for report in reports)
    newest = reports[0].checkpoint.newest_step
    if newest is not None and newest >= reached and all(report.checkpoint.current for report in reports):
        return newest
    if old is not None and old.step >= reached and (newest is None or newest < old.step):
        return old.step
    return max(reached, -1 if newest is None else newest + 1)


def follows(first: FeedState, step: int) -> bool:
    """Whether the other shards may be asked for the cut of `step` as well.

    Shard 0 alone begins final cuts and gives them up. The others do not know of one that has begun whether it still
    comes to stand: they follow once shard 0 is past it.
    """
    return first.status is not None and first.status.checkpoint.orderable >= step


def heard(old: FeedState, status: SyncerStatus, now: float, steady: float) -> FeedState:
    """One shard after a good answer. One that starts again has no figures yet: those from before stand.

    Where the wall clock was set since the last answer, what was noted by it before cannot be compared with now: the
    shard answers since now, and what is counted from there is counted anew.

    Args:
        steady: seconds of a clock that nobody sets.
    """
    clock = now - steady
    was_set = old.clock is not None and abs(clock - old.clock) > STEP_SECONDS
    if status.phase == "Starting" and old.status is not None:
        change = {"phase": status.phase, "message": status.message, "units": {}}
        status = old.status.model_copy(update=change)
    traffic = old.traffic.next(old.status, status) if old.status is not None else old.traffic
    return FeedState(
        status=status,
        answering_since=now if was_set else old.answering_since or now,
        heard=now,
        clock=clock,
        traffic=traffic,
        merged=ledger.merged(status.ledger.values()),
    )


def missed(old: FeedState, reason: str, message: str) -> FeedState:
    """One shard after a poll that failed. No answer is believed at the second time, a wrong one at once."""
    misses = old.misses + 1
    if reason == UNAVAILABLE and misses < MISSES and not old.reason:
        return replace(old, misses=misses)
    return replace(old, reason=reason, message=message, answering_since=None, misses=misses)


def combine(shards: Sequence[FeedState]) -> FeedState:
    """The syncer, from its shards in order; at least one. A single shard is the syncer."""
    if len(shards) == 1:
        return shards[0]
    status = _merged(shards)
    merged = ledger.merged(status.ledger.values()) if status is not None else 0
    since = [shard.answering_since for shard in shards if shard.answering_since is not None]
    heard = min((shard.heard for shard in shards if shard.answers and shard.heard is not None), default=None)
    absent = [_absence(shard) for shard in shards]
    if since:
        traffic = Traffic(
            sum(shard.traffic.into for shard in shards if shard.answers),
            sum(shard.traffic.out for shard in shards if shard.answers),
        )
        return FeedState(
            status=status,
            answering_since=max(since),
            down=told(absent),
            traffic=traffic,
            heard=heard,
            merged=merged,
        )
    reasons = [shard.reason for shard in shards if shard.reason not in ("", UNAVAILABLE)]
    reason = next(iter(reasons), UNAVAILABLE if any(shard.reason for shard in shards) else "")
    return FeedState(
        status=status, reason=reason, message=told([shard.message for shard in shards]), merged=merged
    )


def told(words: Sequence[str]) -> str:
    """`shard 1: its words; shards 0, 2: theirs`; shards without words are left out."""
    said: dict[str, list[int]] = {}
    for index, text in enumerate(words):
        if text:
            said.setdefault(text, []).append(index)
    if words and all(text == words[0] for text in words):
        return words[0]
    parts = [
        f"{'shard' if len(indices) == 1 else 'shards'} {', '.join(map(str, indices))}: {text}"
        for text, indices in said.items()
    ]
    more = [f"and {len(parts) - GROUPS} more"] if len(parts) > GROUPS else []
    return "; ".join([*parts[:GROUPS], *more])


def _absence(shard: FeedState) -> str:
    """Why a shard does not serve; empty when it does."""
    if shard.serves:
        return ""
    if shard.answers and shard.status is not None:
        return f"starts: {shard.status.message}" if shard.status.message else "starts"
    return shard.message or "has not answered yet"


def finishing(status: SyncerStatus) -> bool:
    """No unit is needed any more. Shards hear of each other's end and of the final cut from units alone, so several
    need them until the last one is at its end."""
    return status.phase == "Finished" or (status.phase == "Finishing" and status.shards == 1)


def _merged(shards: Sequence[FeedState]) -> SyncerStatus | None:
    known = [shard.status for shard in shards if shard.status is not None]
    if not known:
        return None
    figures = _owning(known)
    behind = min(figures, key=lambda report: report.global_step)
    newest = max(figures, key=lambda report: report.time)
    coordinator = shards[0].status
    return SyncerStatus(
        run_uid=behind.run_uid,
        phase=_phase(known, len(shards)),
        message=_message(shards),
        global_step=behind.global_step,
        target_steps=behind.target_steps,
        tokens=min(report.tokens for report in figures),
        loss=newest.loss,
        tokens_per_second=newest.tokens_per_second,
        quorum=behind.quorum,
        rounds=sum(report.rounds for report in figures),
        real_interval=max(report.real_interval for report in figures),
        bytes_in=sum(report.bytes_in for report in figures),
        bytes_out=sum(report.bytes_out for report in figures),
        restarts=sum(report.restarts for report in figures),
        checkpoint=_checkpoint(coordinator, figures, all_known=len(known) == len(shards)),
        units=_units(
            _owning([shard.status for shard in shards if shard.serves and shard.status is not None])
        ),
        shards=len(shards),
        fragments=sum(report.fragments for report in figures),
        ledger={
            unit: ledger.add(report.ledger[unit] for report in figures if unit in report.ledger)
            for unit in sorted({unit for report in figures for unit in report.ledger})
        },
        final_checkpoint=next((report.final_checkpoint for report in known if report.final_checkpoint), ""),
        time=min(report.time for report in figures),
    )


def _checkpoint(
    coordinator: SyncerStatus | None, figures: Sequence[SyncerStatus], all_known: bool
) -> CheckpointReport:
    """As the coordinator says; it holds everything when each shard's part does."""
    if coordinator is None:
        return CheckpointReport()
    current = all_known and all(report.checkpoint.current for report in figures)
    return coordinator.checkpoint.model_copy(update={"current": current})


def _owning(reports: Sequence[SyncerStatus]) -> Sequence[SyncerStatus]:
    """Without those that have nothing to merge: shards beyond the tensors, and shards that have yet to start."""
    return [report for report in reports if report.fragments] or reports


def _phase(known: Sequence[SyncerStatus], shards: int) -> SyncerPhase:
    """Failed when any is, Finished when all are; a shard that starts or is silent does not stop the others."""
    phases = [report.phase for report in known]
    if "Failed" in phases:
        return "Failed"
    if len(phases) == shards and set(phases) == {"Finished"}:
        return "Finished"
    if "Finishing" in phases or "Finished" in phases:
        return "Finishing"
    return "Running" if "Running" in phases else "Starting"


def _message(shards: Sequence[FeedState]) -> str:
    """Of the shards that failed, else why each one waits or does not serve."""
    statuses = [shard.status for shard in shards]
    failed = [
        status.message or "gave no reason" if status is not None and status.phase == "Failed" else ""
        for status in statuses
    ]
    if any(failed):
        return told(failed)
    return told(
        [
            _absence(shard) or (status.message if status is not None else "")
            for shard, status in zip(shards, statuses, strict=True)
        ]
    )


def _units(serving: Sequence[SyncerStatus]) -> dict[str, UnitReport]:
    names = sorted({name for report in serving for name in report.units})
    return {name: _unit([report.units.get(name) for report in serving]) for name in names}


def _unit(reports: Sequence[UnitReport | None]) -> UnitReport:
    """One unit, as the shard sees it that has the least of it; one that knows only an older incarnation has nothing."""
    incarnation = max(report.incarnation for report in reports if report is not None)
    seen = [report for report in reports if report is not None and report.incarnation == incarnation]
    everywhere = len(seen) == len(reports)
    states = {report.state for report in seen}
    merged = [report.first_merge_time for report in seen if report.first_merge_time is not None]
    ahead = max(seen, key=lambda report: report.step)
    seeded = next((report for report in seen if report.seeded_step is not None), ahead)
    return UnitReport(
        incarnation=incarnation,
        hosts=min(report.hosts for report in seen) if everywhere else 0,
        state="Gone"
        if "Gone" in states
        else "Learning"
        if everywhere and states == {"Learning"}
        else "Joining",
        step=ahead.step,
        inner_steps=max(report.inner_steps for report in seen),
        tokens=max(report.tokens for report in seen),
        loss=ahead.loss,
        tokens_per_second=ahead.tokens_per_second,
        step_seconds=ahead.step_seconds,
        contributions=min(report.contributions for report in seen) if everywhere else 0,
        staleness=max(report.staleness for report in seen),
        seeded_step=seeded.seeded_step,
        seed_message=seeded.seed_message,
        first_merge_time=max(merged) if everywhere and len(merged) == len(seen) else None,
        beginning=next((report.beginning for report in seen if report.beginning is not None), None),
    )
