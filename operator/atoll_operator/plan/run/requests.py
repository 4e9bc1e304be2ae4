"""What users ask of a run by annotation, as `kubectl atoll checkpoint` writes it."""

from __future__ import annotations

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
