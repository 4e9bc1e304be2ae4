"""Combine the states of a syncer's shards into the state of the syncer.

A shard owns whole tensors of every fragment and knows no other shard, so the model is where the slowest shard is.
Figures come from every shard that was ever heard of, units from the shards that serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from atoll_operator.plan import ledger
from atoll_operator.plan.run.syncer_state import UNAVAILABLE, SyncerState, Traffic
from atoll_runtime.contract import CheckpointReport, SyncerStatus, UnitReport

SyncerPhase = Literal["Starting", "Running", "Finishing", "Finished", "Failed"]
MAX_GROUPS = 4
"""Different messages of shards that are shown together."""
Rules = Mapping[str, Callable[[Any], Any]]
FIGURES: Rules = {
    "global_step": min, "tokens": min, "time": min, "real_interval": max, "rounds": sum, "bytes_in": sum,
    "bytes_out": sum, "restarts": sum, "fragments": sum,
}  # fmt: skip
"""How figures of shards combine; the other fields are those of the shard that is behind."""
UNIT_FIGURES: Rules = {
    "inner_steps": max,
    "tokens": max,
    "staleness": max,
    "hosts": min,
    "contributions": min,
}
"""How figures of one unit combine; the other fields are those of the shard at which the unit is furthest."""


def combine(shards: Sequence[SyncerState]) -> SyncerState:
    """The state of the syncer from those of its shards, in order; at least one."""
    if len(shards) == 1:
        return shards[0]
    status = _status(shards)
    merged = ledger.merged(status.ledger.values()) if status is not None else 0
    answering = [shard for shard in shards if shard.answers]
    if not answering:
        reasons = sorted(
            filter(None, (shard.reason for shard in shards)), key=lambda text: text == UNAVAILABLE
        )
        message = join_messages([shard.message for shard in shards])
        return SyncerState(status=status, reason=next(iter(reasons), ""), message=message, merged=merged)
    traffic = [shard.traffic for shard in answering]
    return SyncerState(
        status=status,
        answering_since=max(shard.answering_since or 0.0 for shard in answering),
        down=join_messages([_absence(shard) for shard in shards]),
        traffic=Traffic(sum(each.into for each in traffic), sum(each.out for each in traffic)),
        heard=min((shard.heard for shard in answering if shard.heard is not None), default=None),
        merged=merged,
    )


def join_messages(messages: Sequence[str]) -> str:
    """One text from the messages of shards 0, 1, …, such as `shard 1: a; shards 0, 2: b`; empty ones are left out."""
    shards: dict[str, list[str]] = {}
    for index, text in enumerate(messages):
        shards.setdefault(text, []).append(str(index))
    if len(shards) == 1:
        return messages[0]
    parts = [
        f"shard{'s' if len(indices) > 1 else ''} {', '.join(indices)}: {text}"
        for text, indices in shards.items()
        if text
    ]
    more = [f"and {len(parts) - MAX_GROUPS} more"] if len(parts) > MAX_GROUPS else []
    return "; ".join([*parts[:MAX_GROUPS], *more])


def _absence(shard: SyncerState) -> str:
    """Why a shard does not serve; empty if it does."""
    if shard.serves:
        return ""
    if shard.answers and shard.status is not None:
        return f"starts: {shard.status.message}" if shard.status.message else "starts"
    return shard.message or "has not answered yet"


def _status(shards: Sequence[SyncerState]) -> SyncerStatus | None:
    known = [shard.status for shard in shards if shard.status is not None]
    if not known:
        return None
    figures = _with_tensors(known)
    behind = min(figures, key=lambda report: report.global_step)
    first = next((report for report in figures if report.shard == 0), behind)  # units report to it alone
    names = sorted({unit for report in figures for unit in report.ledger})
    ledgers = {name: [report.ledger[name] for report in figures if name in report.ledger] for name in names}
    return behind.model_copy(
        update={
            **_combined(figures, FIGURES),
            "phase": _phase(known, len(shards)),
            "message": _message(shards),
            "loss": first.loss,
            "tokens_per_second": first.tokens_per_second,
            "checkpoint": _checkpoint(shards, figures),
            "units": _units(_with_tensors([s.status for s in shards if s.serves and s.status is not None])),
            "shard": 0,
            "shards": len(shards),
            "ledger": {name: ledger.add(parts) for name, parts in ledgers.items()},
            "final_checkpoint": next((r.final_checkpoint for r in known if r.final_checkpoint), ""),
        }
    )


def _combined(reports: Sequence[SyncerStatus | UnitReport], rules: Rules) -> dict[str, Any]:
    return {name: rule(getattr(report, name) for report in reports) for name, rule in rules.items()}


def _with_tensors(reports: Sequence[SyncerStatus]) -> Sequence[SyncerStatus]:
    """Leave out shards that have nothing to merge: those beyond the tensors, and those that have yet to start."""
    return [report for report in reports if report.fragments] or reports


def _checkpoint(shards: Sequence[SyncerState], figures: Sequence[SyncerStatus]) -> CheckpointReport:
    """The report of shard 0, which coordinates checkpoints; it is current if each shard's part is."""
    if shards[0].status is None:
        return CheckpointReport()
    known = all(shard.status is not None for shard in shards)
    current = known and all(report.checkpoint.current for report in figures)
    return shards[0].status.checkpoint.model_copy(update={"current": current})


def _phase(known: Sequence[SyncerStatus], shards: int) -> SyncerPhase:
    """Failed if any shard is, Finished if all are; a shard that starts or is silent does not stop the others."""
    phases = [report.phase for report in known]
    if "Failed" in phases:
        return "Failed"
    if len(phases) == shards and set(phases) == {"Finished"}:
        return "Finished"
    if "Finishing" in phases or "Finished" in phases:
        return "Finishing"
    return "Running" if "Running" in phases else "Starting"


def _message(shards: Sequence[SyncerState]) -> str:
    """Messages of the shards that failed; else why each one waits or does not serve."""
    reports = [shard.status or SyncerStatus(run_uid="", phase="Starting") for shard in shards]
    failed = [(each.message or "gave no reason") if each.phase == "Failed" else "" for each in reports]
    if any(failed):
        return join_messages(failed)
    return join_messages(
        [_absence(shard) or each.message for shard, each in zip(shards, reports, strict=True)]
    )


def _units(serving: Sequence[SyncerStatus]) -> dict[str, UnitReport]:
    names = sorted({name for report in serving for name in report.units})
    return {name: _unit([report.units.get(name) for report in serving]) for name in names}


def _unit(reports: Sequence[UnitReport | None]) -> UnitReport:
    """One unit, as the shard sees it that has least of it. A shard that knows only an older incarnation has nothing."""
    incarnation = max(report.incarnation for report in reports if report is not None)
    seen = [report for report in reports if report is not None and report.incarnation == incarnation]
    ahead = max(seen, key=lambda report: report.step)
    seeded = next((report for report in seen if report.seeded_step is not None), ahead)
    found = ahead.model_copy(
        update={
            **_combined(seen, UNIT_FIGURES),
            "state": min((report.state for report in seen), key=("Gone", "Joining", "Learning").index),
            "seeded_step": seeded.seeded_step,
            "seed_message": seeded.seed_message,
            "first_merge_time": _latest([report.first_merge_time for report in seen]),
            "beginning": next((report.beginning for report in seen if report.beginning is not None), None),
        }
    )
    if len(seen) == len(reports):
        return found
    nothing = {"hosts": 0, "contributions": 0, "first_merge_time": None}
    return found.model_copy(update=nothing | {"state": "Gone" if found.state == "Gone" else "Joining"})


def _latest(times: Sequence[float | None]) -> float | None:
    """None if any is unknown."""
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None
