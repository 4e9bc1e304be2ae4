"""A run on its way to suspension, and the checkpoint that holds everything merged."""

from __future__ import annotations

from typing import Any

import pytest
from run_scene import RunScene, condition, replicas, unit_status

from atoll_operator.plan.run.syncer_state import CheckpointOrder, next_checkpoint_step
from atoll_runtime.contract import CheckpointReport, SyncerStatus

ORDER = CheckpointOrder(42, last=True)


def suspending(pods: bool = False, **checkpoint: Any) -> RunScene:
    """A run of one unit at step 42."""
    scene = RunScene({"a": 1}).syncer(global_step=42)
    scene.step()
    if not pods:
        scene.unit("r-a-0", unit_status(None, phase="Suspended"))
    return scene.change(suspend=True).syncer(global_step=42, checkpoint={"uri": "gs://b", **checkpoint})


def test_nothing_is_saved_while_a_unit_may_still_contribute() -> None:
    plan = suspending(pods=True).plan()
    assert (plan.checkpoint, plan.poll_syncer, replicas(plan)) == (None, True, 1)
    assert "r-a-0" in condition(plan.status, "Suspended")[2]
    scene = suspending()
    assert scene.plan().checkpoint == ORDER
    assert scene.unit("r-b-0", run="another").plan().checkpoint == ORDER


def test_syncer_stops_once_the_status_names_a_checkpoint_that_holds_everything() -> None:
    older = suspending(newestStep=42, current=False).ordered()
    assert (replicas(older.plan()), older.plan().status.phase) == (1, "Suspending")
    scene = suspending(newestStep=42, current=True).ordered()
    plan = scene.step()
    assert (replicas(plan), plan.status.phase, plan.poll_syncer) == (1, "Suspended", True)
    assert plan.status.checkpoint.step == plan.status.global_step == 42
    after = scene.unknown().plan(9)
    assert (replicas(after), after.status, after.poll_syncer) == (0, plan.status, False)


REFUSES, SILENT = (lambda s: s.ordered("it answers 405")), RunScene.silent


@pytest.mark.parametrize(
    ("act", "later", "message"), [(REFUSES, 0, "it answers 405"), (SILENT, 180, "no route")]
)
def test_syncer_that_cannot_save_does_not_block_a_suspension(act: Any, later: float, message: str) -> None:
    scene = act(suspending())
    scene.step()
    plan = scene.step(later)
    assert (replicas(plan), plan.status.phase) == (0, "Suspended")
    suspended = condition(plan.status, "Suspended")
    assert message in suspended[2]
    assert suspended[1] == "NotSaved", "other numbers of shards cannot begin from the last checkpoint"
    assert scene.unknown().condition("Suspended", later + 9) == suspended


def test_run_that_never_began_is_suspended_at_once_and_starts_again() -> None:
    scene = RunScene({"a": 1}, suspend=True).unknown()
    plan = scene.step()
    assert (replicas(plan), plan.status.phase, plan.checkpoint) == (0, "Suspended", None)
    assert condition(plan.status, "Ready")[:2] == ("True", "Suspended"), "it is as its spec says, for kstatus"
    plan = scene.change(suspend=False).plan(60)
    reasons = [condition(plan.status, name)[1] for name in ("Ready", "Suspended")]
    assert reasons == ["SyncerStarting", "NotSuspended"]


STEPS: list[tuple[int, dict[str, Any], CheckpointOrder | None, int]] = [
    (42, {"newest_step": 40}, None, 42),
    (0, {}, None, 0),
    (42, {"newest_step": 42}, None, 43),  # that of this step lacks something
    (42, {"newest_step": 41, "current": True}, None, 41),
    (42, {"newest_step": 42, "current": True}, CheckpointOrder(42), 42),
    (42, {"newest_step": 42}, CheckpointOrder(42), 43),  # a part lacks something
    (42, {"newest_step": 40}, CheckpointOrder(43), 43),  # it is under way
    (44, {"newest_step": 40}, CheckpointOrder(43), 44),  # something was merged since
]


def test_checkpoint_before_a_suspension_is_of_a_step_that_holds_everything() -> None:
    for step, checkpoint, old, wanted in STEPS:
        saved = CheckpointReport(**checkpoint)
        report = SyncerStatus(run_uid="u", phase="Running", global_step=step, checkpoint=saved)
        assert next_checkpoint_step(report, old) == wanted, (report, old)


def test_what_a_user_changes_is_told_in_events_once() -> None:
    scene = RunScene({"a": 2}).syncer(global_step=42)

    def told() -> list[str]:
        return [notice.reason for notice in scene.step().notices]

    assert (told(), told()) == ([], [])
    scene.change(units=1)
    assert (told(), told()) == (["Scaled"], [])
    scene.change(suspend=True)
    assert (told(), told()) == (["SuspendRequested"], [])
    scene.change(suspend=False)
    assert (told(), told()) == (["ResumeRequested"], [])
    scene.see(annotations={"atoll.dev/checkpoint": "42"})
    assert told() == ["CheckpointRequested"]
