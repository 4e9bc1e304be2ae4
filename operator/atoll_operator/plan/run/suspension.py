"""A run on its way to suspension: the units give their chips back, a last cut is taken, the syncer goes.

The chips go first: nothing that follows needs them. Once no unit is left nothing can be merged, so the cut that is
taken then holds everything, and the step at which the run goes on is its step.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.conditions import is_true
from atoll_operator.plan.run.objects import RunObserved, UnitFacts

LIMIT_SECONDS = 180.0
"""For all of it: a pod's grace period, a lost pod's removal, and a cut of some gigabytes. The journal has the state in
any case, so a bucket that cannot be written does not hold the syncer's pods for longer."""
NOT_SAVED = "NotSaved"
"""Reason of `Suspended` where the newest checkpoint lacks merges: the journals alone have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """How far it is."""

    since: str
    """RFC 3339."""
    done: bool
    written: bool = True
    """That it is done stands in the status, or follows from it. Else the syncer goes only when the status has it: an
    operator that took over before would have no word of the cut, and the syncer come back for another."""
    cut: bool = False
    """Whether the syncer is to save a cut of everything now."""
    reason: str = "Suspended"
    """When it is done."""
    message: str = ""
    wake: float | None = None


def plan_suspension(run: RunObserved, now: float) -> Suspension | None:
    """None while the run is not to be suspended."""
    if not run.spec.suspend:
        return None
    old = run.status
    since = old.suspend_time or format_time(now)
    if is_true(old.conditions, "Suspended"):
        known = next(item for item in old.conditions if item.type == "Suspended")
        return Suspension(since=since, done=True, reason=known.reason, message=known.message)
    end = parse_time(since) + LIMIT_SECONDS
    kept = "spec.suspend is true: no pods, the journal is kept"
    if not _begun(run) or old.syncer_shards not in (0, run.spec.syncer.shards):
        return Suspension(since=since, done=True, message=kept)
    order, report = run.cut, run.feed.status
    if order is not None and order.refused:
        message = f"{kept}; the syncer saved no checkpoint of the last step: {order.refused}"
        return Suspension(since=since, done=True, written=False, reason=NOT_SAVED, message=message)
    saved = report.checkpoint.newest_step if report is not None and report.checkpoint.current else None
    if order is not None and order.step == saved:
        message = f"{kept}, checkpoint of step {order.step}"
        return Suspension(since=since, done=True, written=False, message=message)
    staying = [unit.name for unit in run.units.values() if unit.run == run.name and not _left(unit)]
    waits = (
        f"waits until the pods of {', '.join(sorted(staying)[:4])} are gone"
        if staying
        else f"saves a checkpoint of global step {order.step if order is not None else old.global_step}"
    )
    if end <= now:
        why = run.feed.message or (report.checkpoint.error if report is not None else "")
        message = (
            f"{kept}; no checkpoint of the last step after {LIMIT_SECONDS:.0f} s ({waits}) {why}".rstrip()
        )
        return Suspension(since=since, done=True, reason=NOT_SAVED, message=message)
    return Suspension(since=since, done=False, cut=not staying, message=waits, wake=end)


def _begun(run: RunObserved) -> bool:
    """Whether there may be merges that no checkpoint holds."""
    report = run.feed.status
    return run.status.global_step > 0 or (report is not None and report.global_step > 0)


def _left(unit: UnitFacts) -> bool:
    """It has no pods any more."""
    status = unit.status
    return status.phase in ("Suspended", "Failed", "Finished") and not is_true(status.conditions, "Draining")
