"""`suspend`: the units give their chips back, a last checkpoint is saved, the syncer stops. The chips are given back
first, because nothing that follows needs them. Once no unit has pods, nothing more can be merged. So the checkpoint
that is saved then holds everything, and the run resumes at its step."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.plan.conditions import find, format_time, is_true, parse_time
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.syncer_state import CheckpointOrder, next_checkpoint_step

LIMIT_SECONDS = 180.0
"""Limit of the whole suspension: a pod's grace period, the removal of a lost pod, and a checkpoint of some gigabytes.
The journals have the state in any case, so the syncer does not run longer for a bucket that cannot be written."""
NOT_SAVED = "NotSaved"
"""Reason of `Suspended` if the newest checkpoint lacks merges that only the journals have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    since: str
    """RFC 3339."""
    done: bool
    written: bool = True
    """The status says that it is done, or it follows from the status. Otherwise the syncer stops only after the status
    is written: another operator would not know of the checkpoint and would start the syncer for a new one."""
    checkpoint: CheckpointOrder | None = None
    reason: str = "Suspended"
    """Reason of the condition once the suspension is done."""
    message: str = ""
    wake: float | None = None


def plan_suspension(run: RunObserved, now: float) -> Suspension | None:
    """None if the run should not be suspended."""
    if not run.spec.suspend:
        return None
    old, report = run.status, run.syncer.status
    order = run.syncer.order if run.syncer.order is not None and run.syncer.order.last else None
    since, known = old.suspend_time or format_time(now), find(old.conditions, "Suspended")
    if known.status == "True":
        return Suspension(since=since, done=True, reason=known.reason, message=known.message)
    kept = "spec.suspend is true: no pods, the journal is kept"
    if not run.merged or old.syncer_shards not in (0, run.spec.syncer.shards):
        return Suspension(since=since, done=True, message=kept)
    if order is not None and order.refused:
        message = f"{kept}; the syncer saved no checkpoint of the last step: {order.refused}"
        return Suspension(since=since, done=True, written=False, reason=NOT_SAVED, message=message)
    if order is not None and report is not None and order.stands(report):
        message = f"{kept}, checkpoint of step {report.checkpoint.newest_step}"
        return Suspension(since=since, done=True, written=False, message=message)
    staying, wanted = [name for name, unit in run.own_units.items() if not _stopped(unit)], None
    if staying:
        waits = f"waits until the pods of {', '.join(staying[:4])} are gone"
    else:
        if report is not None:
            wanted = CheckpointOrder(next_checkpoint_step(report, order), last=True)
        waits = f"saves a checkpoint of global step {wanted.step if wanted is not None else old.global_step}"
    end = parse_time(since) + LIMIT_SECONDS
    if end <= now:
        why = run.syncer.message or (report.checkpoint.error if report is not None else "")
        message = f"{kept}; no checkpoint of the last step after {LIMIT_SECONDS:.0f} s ({waits}) {why}"
        return Suspension(since=since, done=True, reason=NOT_SAVED, message=message.rstrip())
    return Suspension(since=since, done=False, checkpoint=wanted, message=waits, wake=end)


def _stopped(unit: UnitFacts) -> bool:
    """Whether the unit has no pods any more."""
    status = unit.status
    return status.phase in ("Suspended", "Failed", "Finished") and not is_true(status.conditions, "Draining")
