"""What of a syncer's answer is acted on at once, and what waits for its turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.plan.run.feednews import RUN_FIGURES, UNIT_FIGURES, FeedNews, compare
from atoll_operator.plan.run.shards import FeedState, Traffic
from atoll_runtime.contract import BeginningReport, CheckpointReport, LedgerReport, SyncerStatus, UnitReport

UNIT = UnitReport(incarnation=1, hosts=4, state="Learning", step=10, inner_steps=10, tokens=100, loss=2.0)
LEDGER = LedgerReport(trained=100, merged=90, in_flight=10)
STATUS = SyncerStatus(
    run_uid="u", phase="Running", global_step=5, units={"a": UNIT, "b": UNIT}, ledger={"a": LEDGER, "b": LEDGER}
)  # fmt: skip
STATE = FeedState(status=STATUS, answering_since=1.0)
MOVED: dict[str, Any] = {
    "step": 11, "inner_steps": 11, "tokens": 110, "loss": 1.9, "tokens_per_second": 9.0, "step_seconds": 0.1,
    "contributions": 7, "staleness": 2,
}  # fmt: skip
TOLD: dict[str, Any] = {
    "incarnation": 2, "hosts": 3, "state": "Gone", "seeded_step": 4, "seed_message": "skipped one",
    "first_merge_time": 9.0, "beginning": BeginningReport.model_construct(),
}  # fmt: skip
RUN_MOVED: dict[str, Any] = {
    "message": "waits for b", "global_step": 6, "tokens": 9, "loss": 1.0, "tokens_per_second": 9.0, "quorum": "2/2",
    "rounds": 3, "real_interval": 24.0, "bytes_in": 9, "bytes_out": 9,
}  # fmt: skip
RUN_TOLD: dict[str, Any] = {
    "run_uid": "v", "target_steps": 9, "restarts": 1, "shard": 1, "shards": 2, "fragments": 4,
    "final_checkpoint": "gs://b/r",
}  # fmt: skip


def after(**changes: Any) -> FeedState:
    return replace(STATE, status=STATUS.model_copy(update=changes))


def unit_after(**changes: Any) -> FeedState:
    return after(units={"a": UNIT.model_copy(update=changes), "b": UNIT})


def test_every_field_of_an_answer_is_told_apart_here() -> None:
    assert MOVED.keys() == UNIT_FIGURES
    assert MOVED.keys() | TOLD.keys() == UnitReport.model_fields.keys()
    assert RUN_MOVED.keys() | {"units", "ledger", "checkpoint", "time"} == RUN_FIGURES
    assert RUN_FIGURES | RUN_TOLD.keys() | {"phase"} == SyncerStatus.model_fields.keys()


def test_the_same_answer_again_is_no_news() -> None:
    assert not compare(STATE, replace(after(time=9.0), misses=1, merged=7))


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_figure_of_a_unit_waits_for_its_turn(name: str) -> None:
    news = compare(STATE, unit_after(**{name: MOVED[name]}))
    assert news == FeedNews(figures=True, moved=frozenset("a"), of=2)


def test_a_ledger_that_moves_waits_for_its_turn() -> None:
    moved = LEDGER.model_copy(update={"merged": 95})
    assert compare(STATE, after(ledger={"a": moved, "b": LEDGER})).moved == {"a"}


@pytest.mark.parametrize("name", sorted(TOLD))
def test_anything_else_of_a_unit_is_looked_at_now(name: str) -> None:
    news = compare(STATE, unit_after(step=11, **{name: TOLD[name]}))
    assert news == FeedNews(run=True, units=frozenset("a"), figures=True, of=2)


def test_the_first_loss_of_a_unit_is_looked_at_now() -> None:
    assert compare(unit_after(loss=None), STATE).units == {"a"}


def test_units_that_come_and_go_are_looked_at_now() -> None:
    assert compare(STATE, after(units={"a": UNIT, "c": UNIT})).units == {"b", "c"}


@pytest.mark.parametrize("name", sorted(RUN_MOVED))
def test_a_figure_of_the_run_waits_for_its_turn(name: str) -> None:
    assert compare(STATE, after(**{name: RUN_MOVED[name]})) == FeedNews(figures=True, of=2)


@pytest.mark.parametrize("name", sorted(RUN_TOLD))
def test_anything_else_of_the_run_is_looked_at_now(name: str) -> None:
    assert compare(STATE, after(**{name: RUN_TOLD[name]})).run


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        pytest.param({"newest_step": 5, "uri": "gs://b/5"}, True, id="a-new-cut"),
        pytest.param({"error": "403"}, True, id="a-cut-that-failed"),
        pytest.param({"current": True}, True, id="all-is-saved"),
        pytest.param({"orderable": 6}, False, id="a-cut-could-be-ordered"),
    ],
)
def test_news_of_checkpoints_does_not_wait(changes: dict[str, Any], now: bool) -> None:
    assert compare(STATE, after(checkpoint=CheckpointReport(**changes))).run is now


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(after(phase="Finishing"), id="another-phase"),
        pytest.param(replace(STATE, answering_since=None, reason="SyncerUnavailable"), id="it-is-gone"),
        pytest.param(replace(STATE, down="shard 1: no route"), id="a-shard-is-gone"),
        pytest.param(FeedState(), id="unknown"),
    ],
)
def test_all_units_look_when_the_syncer_comes_goes_or_changes_its_phase(other: FeedState) -> None:
    for news in (compare(STATE, other), compare(other, STATE)):
        assert news == FeedNews(run=True, every_unit=True, figures=True, of=2)


def test_another_reason_or_shard_is_looked_at_now_and_traffic_waits() -> None:
    down = replace(STATE, down="shard 1: no route")
    assert compare(down, replace(down, down="shard 2: no route")).run
    assert compare(STATE, replace(STATE, traffic=Traffic(1.0, 1.0))) == FeedNews(figures=True, of=2)
