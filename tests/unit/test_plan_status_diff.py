"""What of a syncer's report is acted on at once, and what is figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.plan.run.status_diff import RUN_FIGURES, UNIT_FIGURES, StatusDiff, compare
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_runtime.contract import BeginningReport, CheckpointReport, LedgerReport, SyncerStatus, UnitReport

UNIT = UnitReport(incarnation=1, hosts=4, state="Learning", step=10, inner_steps=10, tokens=100, loss=2.0)
LEDGER = LedgerReport(trained=100, merged=90, in_flight=10)
STATUS = SyncerStatus(
    run_uid="u", phase="Running", global_step=5, units={"a": UNIT, "b": UNIT}, ledger={"a": LEDGER, "b": LEDGER}
)  # fmt: skip
STATE = SyncerState(status=STATUS, answering_since=1.0)
MOVED: dict[str, Any] = {
    "step": 11, "inner_steps": 11, "tokens": 110, "loss": 1.9, "tokens_per_second": 9.0, "step_seconds": 0.1,
    "contributions": 7, "staleness": 2,
}  # fmt: skip
CHANGED: dict[str, Any] = {
    "incarnation": 2, "hosts": 3, "state": "Gone", "seeded_step": 4, "seed_message": "skipped one",
    "first_merge_time": 9.0, "beginning": BeginningReport.model_construct(),
}  # fmt: skip
RUN_MOVED: dict[str, Any] = {
    "message": "waits for b", "global_step": 6, "tokens": 9, "loss": 1.0, "tokens_per_second": 9.0, "quorum": "2/2",
    "rounds": 3, "real_interval": 24.0, "bytes_in": 9, "bytes_out": 9,
}  # fmt: skip
RUN_CHANGED: dict[str, Any] = {
    "run_uid": "v", "target_steps": 9, "restarts": 1, "shard": 1, "shards": 2, "fragments": 4,
    "final_checkpoint": "gs://b/r",
}  # fmt: skip


def after(**changes: Any) -> SyncerState:
    return replace(STATE, status=STATUS.model_copy(update=changes))


def unit_after(**changes: Any) -> SyncerState:
    return after(units={"a": UNIT.model_copy(update=changes), "b": UNIT})


def test_tables_of_this_file_name_every_field() -> None:
    assert MOVED.keys() == UNIT_FIGURES
    assert MOVED.keys() | CHANGED.keys() == UnitReport.model_fields.keys()
    assert RUN_MOVED.keys() | {"units", "ledger", "checkpoint", "time"} == RUN_FIGURES
    assert RUN_FIGURES | RUN_CHANGED.keys() | {"phase"} == SyncerStatus.model_fields.keys()


def test_failed_poll_that_changes_nothing_wakes_nothing() -> None:
    assert not compare(STATE, replace(STATE, misses=1, merged=7))


def test_figures_wait() -> None:
    for name, value in MOVED.items():
        diff = compare(STATE, unit_after(**{name: value}))
        assert diff == StatusDiff(figures=True, moved=frozenset("a"), known=2), name
    merged = LEDGER.model_copy(update={"merged": 95})
    assert compare(STATE, after(ledger={"a": merged, "b": LEDGER})).moved == {"a"}
    for name, value in RUN_MOVED.items():
        assert compare(STATE, after(**{name: value})) == StatusDiff(figures=True, known=2), name


def test_everything_else_of_a_unit_or_the_run_is_acted_on_at_once() -> None:
    for name, value in CHANGED.items():
        diff = compare(STATE, unit_after(step=11, **{name: value}))
        assert diff == StatusDiff(run=True, units=frozenset("a"), figures=True, known=2), name
    assert compare(unit_after(loss=None), STATE).units == {"a"}, "its first loss"
    assert compare(STATE, after(units={"a": UNIT, "c": UNIT})).units == {"b", "c"}
    for name, value in RUN_CHANGED.items():
        assert compare(STATE, after(**{name: value})).run, name


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        pytest.param({"newest_step": 5, "uri": "gs://b/5"}, True, id="new"),
        pytest.param({"error": "403"}, True, id="failed"),
        pytest.param({"current": True}, True, id="everything-is-saved"),
        pytest.param({"orderable": 6}, False, id="one-could-be-ordered"),
    ],
)
def test_news_of_checkpoints_is_acted_on_at_once(changes: dict[str, Any], now: bool) -> None:
    assert compare(STATE, after(checkpoint=CheckpointReport(**changes))).run is now


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(after(phase="Finishing"), id="another-phase"),
        pytest.param(replace(STATE, answering_since=None, reason="SyncerUnavailable"), id="unavailable"),
        pytest.param(replace(STATE, down="shard 1: no route"), id="a-shard-is-down"),
        pytest.param(SyncerState(), id="unknown"),
    ],
)
def test_all_units_are_due_if_the_syncer_comes_goes_or_changes_its_phase(other: SyncerState) -> None:
    for diff in (compare(STATE, other), compare(other, STATE)):
        assert diff == StatusDiff(run=True, every_unit=True, figures=True, known=2)
    down = replace(STATE, down="shard 1: no route")
    assert compare(down, replace(down, down="shard 2: no route")).run
