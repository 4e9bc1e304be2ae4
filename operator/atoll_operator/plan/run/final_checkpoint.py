"""The checkpoint that is saved before a run is suspended: one that holds everything that was merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_operator.plan.run.syncer_state import SyncerState


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """A checkpoint that the shards were asked for."""

    step: int
    refused: str = ""
    """Why they refuse it; a shard that merely does not answer is asked again."""


def next_checkpoint_step(shards: Sequence[SyncerState], old: CheckpointOrder | None) -> int | None:
    """The global step of a checkpoint that holds everything merged; None while a shard has not been heard of.

    This is the step that the run has reached, or one more if a checkpoint of that step exists and lacks what was merged
    after it. It is never a step that a shard has passed, because shards record checkpoints in order.
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


def follows(first: SyncerState, step: int) -> bool:
    """Whether the other shards may be asked for the checkpoint of `step` too.

    Shard 0 alone begins final checkpoints and gives them up, and the others cannot know whether one will be completed.
    They follow once shard 0 is past it.
    """
    return first.status is not None and first.status.checkpoint.orderable >= step
