"""What users ask of a run, by annotation as `kubectl atoll checkpoint` writes it, or by its spec; Events record it."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.conditions import Notice
from atoll_operator.plan.run.observed import RunObserved

CHECKPOINT = "atoll.dev/checkpoint"
"""Its value is the global step that the run had: a checkpoint of that step or a later one is wanted."""
DIGITS = 15


def wanted_checkpoint(run: RunObserved) -> int | None:
    """The global step of which, or of a later one, a checkpoint has yet to be saved; None if nobody asks."""
    text, report = run.annotations.get(CHECKPOINT, ""), run.syncer.status
    if run.spec.suspend or report is None or not text.isdecimal() or len(text) > DIGITS:
        return None
    newest = report.checkpoint.newest_step
    return int(text) if newest is None or newest < int(text) else None


def notices(old: TrainingRunStatus, new: TrainingRunStatus, wanted: int | None) -> Iterator[Notice]:
    """Events for what a user has changed between two statuses, and for a checkpoint that is wanted."""
    if old.suspend_time is None and new.suspend_time is not None:
        yield Notice("Normal", "SuspendRequested", "spec.suspend is true", new.suspend_time)
    if old.suspend_time is not None and new.suspend_time is None:
        yield Notice("Normal", "ResumeRequested", "spec.suspend is false", old.suspend_time)
    if old.observed_generation > 0 and old.units_wanted != new.units_wanted:
        change = f"{new.units_wanted} units are wanted, {old.units_wanted} were"
        yield Notice("Normal", "Scaled", change, f"{new.observed_generation}")
    if wanted is not None:
        text = f"a checkpoint of global step {wanted} or later is wanted"
        yield Notice("Normal", "CheckpointRequested", text, f"{wanted}")
