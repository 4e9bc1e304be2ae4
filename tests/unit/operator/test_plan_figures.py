"""Figures of a status: costs, shares, and what the syncer reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pod_kinds import learner_unit
from pydantic import ValidationError
from run_scene import NOW, RunScene, unit_status

from atoll_operator.api.common import Cost, CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan import cost
from atoll_operator.plan.conditions import document, only_figures
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import UnitPlan
from atoll_runtime.contract import MOST_REASONS, LedgerReport, SyncerStatus, UnitReport


def test_the_syncer_serves_since_the_last_of_its_shards_came() -> None:
    state, seen = SyncerState(), []
    for second, down in ((1.0, ""), (2.0, ""), (4.0, "shard 1"), (6.0, "shard 1"), (8.0, "")):
        state = state.heard(SyncerStatus(run_uid="u", phase="Running", time=second, down=down), second)
        seen.append((state.answers, state.serving_since))
    assert seen == [(True, 1.0), (True, 1.0), (True, None), (True, None), (True, 8.0)]
    again = state.heard(SyncerStatus(run_uid="u", phase="Starting"), 10.0)
    assert (again.status.time, again.status.units, again.serving_since) == (8.0, {}, None)


@pytest.mark.parametrize(
    ("phase", "shards", "over"),
    [("Running", 1, False), ("Finishing", 1, True), ("Finished", 1, True), ("Finishing", 2, False),
     ("Finished", 2, True)],
)  # fmt: skip
def test_several_shards_need_units_until_the_last_has_finished(phase: Any, shards: int, over: bool) -> None:
    told = SyncerStatus(run_uid="u", phase=phase, shards=shards)
    assert SyncerState().heard(told, 1.0).finishing is over


def test_the_cost_of_failures_adds_up_by_reason_and_reasons_without_room_are_one() -> None:
    first, second = cost.of_heal(30.0, 16, step_seconds=0.5), cost.of_heal(10.0, 16, step_seconds=0.0)
    assert first == Cost(failures=1, seconds=30.0, chip_seconds=480.0, steps=60)
    lost = cost.with_heal(cost.with_heal(None, "Hang", first), "NodeLost", second)
    assert lost.by_reason == {"Hang": first, "NodeLost": second}
    whole = {"failures": 2, "seconds": 40.0, "chip_seconds": 640.0, "steps": 60}
    assert lost.model_dump(exclude={"by_reason"}) == whole
    assert cost.total([]) == CostStatus()
    lost = CostStatus()
    for number in (*range(20), 3):
        lost = cost.with_heal(lost, f"Reason{number:02}", first)
    assert (len(lost.by_reason), lost.failures) == (MOST_REASONS, 21)
    assert (lost.by_reason["Reason03"].failures, lost.by_reason["Other"].failures) == (2, 5)


def test_restarts_and_costs_of_a_run_are_sums_over_its_present_units() -> None:
    heal, scene = cost.of_heal(30.0, 16, step_seconds=0.5), RunScene()
    assert scene.step().status.lost is None
    for number, reasons in enumerate((["Hang", "NodeLost"], ["Hang"], ["Hang"])):
        lost = CostStatus()
        for reason in reasons:
            lost = cost.with_heal(lost, reason, heal)
        status, ours = unit_status(restart_count=len(reasons), lost=lost), number < 2
        scene.unit(f"r-p-{number}", status, owned=ours, ours=ours)  # the last one is of another run
    status = scene.step().status
    hangs = {reason: part.failures for reason, part in status.lost.by_reason.items()}
    assert (status.restarts, status.lost.failures, hangs) == (3, 3, {"Hang": 2, "NodeLost": 1})
    assert status.lost.chip_seconds == 3 * heal.chip_seconds
    scene.only("r-p-1")
    assert (scene.step().status.restarts, scene.status.lost) == (1, cost.with_heal(None, "Hang", heal))


def test_figures_do_not_fall_where_shard_0_has_yet_to_hear_of_another_shard() -> None:
    scene = RunScene().syncer(global_step=30, tokens=900, restarts=1)
    scene.step()
    scene.syncer(global_step=3, tokens=500, restarts=0, down="shard 1: away").step()
    status = scene.status
    assert (status.global_step, status.progress_percent) == (30, 30)
    assert (status.tokens, status.syncer_restarts) == (900, 1)
    scene.silent().step()
    scene.syncer(global_step=33, tokens=990, restarts=2).step()
    assert scene.status.syncer_restarts == 2
    scene.syncer("Starting", global_step=0).step()  # no shard has read its journal
    assert (scene.status.global_step, scene.status.tokens, scene.status.progress_percent) == (33, 990, 33)


def test_figures_and_messages_of_true_conditions_can_wait() -> None:
    def status(count: int, ready: str = "True", **figures: Any) -> dict[str, Any]:
        learning = {"type": "Learning", "status": ready, "reason": "R", "message": f"{count} merged"}
        return {"phase": "Running", "conditions": [learning], **figures}

    figures = {"step": 9, "tokens": 8, "loss": 1.0, "sharePercent": 3, "ledger": {"trained": 1}}
    assert only_figures(status(1), status(2, **figures))
    assert not only_figures(status(1), status(2, ready="False"))
    assert not only_figures(status(1, "False"), status(2, "False"))
    assert not only_figures(status(1), status(1, message="heals"))
    assert not only_figures(status(1), status(1, restartCount=1))
    assert not only_figures(status(1, lastHealSeconds=3.0), status(1))


def test_a_sum_of_ledgers_that_name_too_many_reasons_balances_and_has_the_rest_in_one() -> None:
    parts = [LedgerReport(trained=9, merged=2, discarded={f"{n}": 3, "Missed": 4}) for n in range(100)]
    total = LedgerReport.total(parts)
    assert len(total.discarded) == 16 and total.trained == total.merged + sum(total.discarded.values())
    assert (total.discarded["Missed"], total.discarded["Other"]) == (400, 86 * 3)


def test_a_unit_has_room_for_as_many_reasons_as_a_report_may_name() -> None:
    many = {f"reason-{number}": 1 for number in range(MOST_REASONS)}
    unit = UnitReport(incarnation=3, hosts=2, state="Learning", refusals=many)
    syncer = SyncerState().heard(SyncerStatus(run_uid="u", phase="Running", units={"r-two-0": unit}), NOW)
    plan = describe(replace(learner_unit(), syncer=syncer), UnitPlan(status=LearnerUnitStatus(), members=()))
    assert LearnerUnitStatus.model_validate(document(plan.status)).refusals == many


@pytest.mark.parametrize(
    ("field", "most"), [("quorum", 128), ("final_checkpoint", 1024), ("checkpoint", 1024)]
)
def test_a_syncer_reports_no_text_that_is_too_long_for_the_status(field: str, most: int) -> None:
    def told(length: int) -> Any:
        text = "a" * length
        return {field: {"uri": text} if field == "checkpoint" else text}

    TrainingRunStatus.model_validate(document(RunScene().syncer(**told(most)).step().status))
    with pytest.raises(ValidationError):
        SyncerStatus(run_uid="u", phase="Running", **told(most + 1))
