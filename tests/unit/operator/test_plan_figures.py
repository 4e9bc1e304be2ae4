"""Figures of a status: traffic, shares, and sums that never fall when units are deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pod_kinds import learner_unit
from pydantic import ValidationError
from run_scene import NOW, RunScene, unit_status

from atoll_operator.api.common import Cost, CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan import cost
from atoll_operator.plan.conditions import document, format_time, only_figures
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import UnitPlan
from atoll_runtime.contract import MOST_REASONS, LedgerReport, SyncerStatus, UnitReport

HEAL = cost.of_heal(0.1, chips=4, step_seconds=0.1)


def report(time: float, received: int, sent: int = 0, down: str = "") -> SyncerStatus:
    return SyncerStatus(run_uid="u", phase="Running", bytes_in=received, bytes_out=sent, time=time, down=down)


def after(*reports: SyncerStatus) -> SyncerState:
    state = SyncerState()
    for each in reports:
        state = state.heard(each, each.time)
    return state


def test_traffic_is_a_mean_of_a_steady_rate() -> None:
    state = after(*(report(2.0 * i, 500_000_000 * i, 250_000_000 * i) for i in range(120)))
    assert (state.traffic.into, state.traffic.out) == (pytest.approx(2, rel=0.01), pytest.approx(1, rel=0.01))
    before = after(report(0, 0), report(2, 10**9))
    assert before.heard(report(4, 10), 4).traffic == before.traffic, "it counts from zero again"
    assert before.heard(report(2, 10**9), 3).traffic == before.traffic, "the same report"
    partial = before.heard(report(4, 10**10, down="shard 1"), 4)
    assert partial.traffic == before.traffic, "a shard more or less is no traffic"
    assert partial.heard(report(6, 2 * 10**10, down="shard 1"), 6).traffic.into > before.traffic.into


def test_the_syncer_serves_since_the_last_of_its_shards_came() -> None:
    state, seen = SyncerState(), []
    for second, down in ((1.0, ""), (2.0, ""), (4.0, "shard 1"), (6.0, "shard 1"), (8.0, "")):
        state = state.heard(report(second, 0, down=down), second)
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
    assert cost.total([], ()) == CostStatus()
    lost = CostStatus()
    for number in (*range(20), 3):
        lost = cost.with_heal(lost, f"Reason{number:02}", first)
    assert (len(lost.by_reason), lost.failures) == (MOST_REASONS, 21)
    assert (lost.by_reason["Reason03"].failures, lost.by_reason["Other"].failures) == (2, 5)


def failed(status: LearnerUnitStatus, *reasons: str) -> LearnerUnitStatus:
    lost = status.lost
    for reason in reasons:
        lost = cost.with_heal(lost, reason, HEAL)
    return status.model_copy(update={"restart_count": status.restart_count + len(reasons), "lost": lost})


def fail(scene: RunScene, name: str, *reasons: str) -> None:
    scene.unit(name, failed(scene.units[name].status, *reasons))


def figures(lost: CostStatus | None) -> dict[str, float]:
    parts = {"": lost, **lost.by_reason} if lost is not None else {}
    fields = ("failures", "seconds", "chip_seconds", "steps")
    return {f"{name}.{field}": getattr(part, field) for name, part in parts.items() for field in fields}


ACTS = st.tuples(
    st.sampled_from(["fail", "fail", "scale down", "scale up", "delete", "delete unseen"]),
    st.sampled_from(["r-p-0", "r-p-1", "r-p-2"]),
    st.sampled_from(["Hang", "NodeLost", "AppError"]),
)


@settings(max_examples=300)
@given(st.lists(ACTS, max_size=30))
def test_restarts_and_costs_include_deleted_units_and_never_fall(acts: list[tuple[str, str, str]]) -> None:
    scene, failures = RunScene({"p": 3}), 0
    scene.step()
    for act, name, reason in acts:
        before = scene.status
        if act == "fail" and name in scene.units:
            fail(scene, name, reason)
            failures += 1
        elif act.startswith("scale"):
            scene.change({"p": 1 if act == "scale down" else 3})
        elif act.startswith("delete"):
            scene.units.pop(name, None)
        for _ in range(1 if act == "delete unseen" else 2):
            scene.step()
        old, new = figures(before.lost), figures(scene.status.lost)
        assert all(new[key] >= value for key, value in old.items())
        assert scene.status.restarts == new.get(".failures", 0) == failures
        assert new.get(".chip_seconds", 0.0) == pytest.approx(0.4 * failures)


def test_deleted_part_is_shown_its_reasons_keep_their_names_and_foreign_units_add_nothing() -> None:
    scene, early = RunScene({"p": 2}), [f"Early{number}" for number in range(MOST_REASONS - 2)]
    scene.step()
    fail(scene, "r-p-1", *early)
    fail(scene, "r-p-0", "Late1")
    scene.step()
    fail(scene, "r-p-0", "Late0")
    scene.step()
    scene.change({"p": 1}).step()
    scene.step()
    status = scene.status
    assert (status.restarts, status.deleted_units.restarts) == (MOST_REASONS, MOST_REASONS - 2)
    assert set(status.deleted_units.lost.by_reason) == set(early)
    assert (status.lost.by_reason["Late1"].failures, status.lost.by_reason["Other"].failures) == (1, 1)
    heals = unit_status(False, heal_start_time=format_time(NOW - 9), heal_reason="Hang", chips=4)
    earlier: Any = {"owned": False, "ours": False}
    scene = RunScene().unit("r-p-0", failed(unit_status(), "Hang"), **earlier).unit("r-p-1", heals)
    status = scene.step().status
    assert (status.restarts, status.lost, status.deleted_units) == (0, None, None)


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
