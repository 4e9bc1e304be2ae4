"""What of a syncer's report is acted on at once, what is figures, and since when the syncer answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.plan.run.syncer_state import (
    StatusDiff,
    SyncerState,
    compare,
)
from atoll_runtime.contract import BeginningReport, CheckpointReport, LedgerReport, SyncerStatus, UnitReport

UNIT = UnitReport(incarnation=1, hosts=4, state="Learning", step=10, loss=2.0)
STATUS = SyncerStatus(run_uid="u", phase="Running", global_step=5, units={"a": UNIT, "b": UNIT})
STATE = SyncerState(status=STATUS, answering_since=1.0)
UNIT_CHANGES: dict[str, Any] = {
    "incarnation": 2, "hosts": 3, "state": "Gone", "seeded_step": 4, "seed_message": "skipped one",
    "first_merge_time": 9.0, "beginning": BeginningReport.model_construct(),
}  # fmt: skip
RUN_CHANGES: dict[str, Any] = {
    "run_uid": "v", "target_steps": 9, "restarts": 1, "shard": 1, "shards": 2, "fragments": 4,
    "final_checkpoint": "gs://b/r", "down": "shard 1: away",
}  # fmt: skip


def after(**changes: Any) -> SyncerState:
    return replace(STATE, status=STATUS.model_copy(update=changes))


def unit_after(**changes: Any) -> SyncerState:
    return after(units={"a": UNIT.model_copy(update=changes), "b": UNIT})


def test_figures_wait_and_everything_else_is_acted_on_at_once() -> None:
    unit_figures = UnitReport.model_fields.keys() - UNIT_CHANGES.keys()
    run_figures = SyncerStatus.model_fields.keys() - {*RUN_CHANGES, "checkpoint", "phase"}
    assert not compare(STATE, replace(STATE, misses=1, merged=7))
    assert not compare(STATE, unit_after(**dict.fromkeys(unit_figures, 99)))
    figures = dict.fromkeys(run_figures, 99) | {
        "units": STATUS.units,
        "ledger": {"a": LedgerReport(trained=9)},
    }
    assert not compare(STATE, after(**figures))
    for name, value in UNIT_CHANGES.items():
        diff = compare(STATE, unit_after(step=11, **{name: value}))
        assert diff == StatusDiff(run=True, units=frozenset("a")), name
    assert compare(unit_after(loss=None), STATE).units == {"a"}, "its first loss"
    assert compare(STATE, after(units={"a": UNIT, "c": UNIT})).units == {"b", "c"}
    for name, value in RUN_CHANGES.items():
        assert compare(STATE, after(**{name: value})).run, name


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"newest_step": 5, "uri": "gs://b/5"}, id="new"),
        pytest.param({"error": "403"}, id="failed"),
        pytest.param({"current": True}, id="everything-is-saved"),
    ],
)
def test_news_of_checkpoints_is_acted_on_at_once(changes: dict[str, Any]) -> None:
    assert compare(STATE, after(checkpoint=CheckpointReport(**changes))).run


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(after(phase="Finishing"), id="another-phase"),
        pytest.param(replace(STATE, answering_since=None, reason="SyncerUnavailable"), id="unavailable"),
        pytest.param(after(down="shard 1: no route"), id="a-shard-is-down"),
        pytest.param(SyncerState(), id="unknown"),
    ],
)
def test_all_units_are_due_if_the_syncer_comes_goes_or_changes_its_phase(other: SyncerState) -> None:
    for diff in (compare(STATE, other), compare(other, STATE)):
        assert diff == StatusDiff(run=True, every_unit=True)
    assert compare(after(down="shard 1: no route"), after(down="shard 2: no route")).run


@pytest.mark.parametrize(("later", "since"), [(60.5, 1000.0), (3660.0, 4660.0), (-3540.0, -2540.0)])
def test_a_syncer_answers_since_now_where_the_clock_was_set_and_no_unit_looks_hung(
    later: float, since: float
) -> None:
    first = SyncerState().heard(STATUS, 1000.0, 0.0)
    assert first.heard(STATUS, 1000.0 + later, 60.0).answering_since == since


def test_the_syncer_serves_since_the_last_of_its_shards_came() -> None:
    away, seen = after(down="shard 1: away").status, []
    state = SyncerState()
    for second, report in (
        (1000.0, STATUS),
        (1002.0, STATUS),
        (1004.0, away),
        (1006.0, away),
        (1008.0, STATUS),
    ):
        state = state.heard(report, second, second)
        seen.append((state.answers, state.serving_since))
    assert seen == [(True, 1000.0), (True, 1000.0), (True, None), (True, None), (True, 1008.0)]
    again = state.heard(SyncerStatus(run_uid="u", phase="Starting"), 1010.0, 1010.0)
    assert (again.status.global_step, again.status.units, again.serving_since) == (5, {}, None)


def test_several_shards_need_units_until_the_last_one_has_finished() -> None:
    for phase, shards, over in (("Running", 1, False), ("Finishing", 1, True), ("Finished", 1, True)):
        assert after(phase=phase, shards=shards).finishing is over
    assert [after(phase=phase, shards=2).finishing for phase in ("Finishing", "Finished")] == [
        False,
        True,
    ]
