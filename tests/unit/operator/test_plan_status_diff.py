"""What of a syncer's report is acted on at once, what is figures, and since when the syncer answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.cache import Key
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.wakeups import report_wakeups
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


def woken(old: SyncerState, new: SyncerState) -> set[str]:
    """Names of what is reconciled at once after this report, of the run r with the units a, b and idle."""
    inventory = Inventory()
    for version, name in enumerate(("a", "b", "idle"), 1):
        metadata = {"namespace": "n", "name": name, "uid": name, "resourceVersion": str(version)}
        inventory.put("LearnerUnit", {"metadata": metadata, "spec": {"run": "r"}})
    return {key.name for key in report_wakeups(Key("TrainingRun", "n", "r"), old, new, inventory)}


def after(**changes: Any) -> SyncerState:
    return replace(STATE, status=STATUS.model_copy(update=changes))


def unit_after(**changes: Any) -> SyncerState:
    return after(units={"a": UNIT.model_copy(update=changes), "b": UNIT})


def test_figures_wait_and_everything_else_is_acted_on_at_once() -> None:
    unit_figures = UnitReport.model_fields.keys() - UNIT_CHANGES.keys()
    run_figures = SyncerStatus.model_fields.keys() - {*RUN_CHANGES, "checkpoint", "phase"}
    assert not woken(STATE, replace(STATE, misses=1, merged=7))
    assert not woken(STATE, unit_after(**dict.fromkeys(unit_figures, 99)))
    figures = dict.fromkeys(run_figures, 99) | {
        "units": STATUS.units,
        "ledger": {"a": LedgerReport(trained=9)},
    }
    assert not woken(STATE, after(**figures))
    for name, value in UNIT_CHANGES.items():
        assert woken(STATE, unit_after(step=11, **{name: value})) == {"r", "a"}, name
    assert woken(unit_after(loss=None), STATE) == {"r", "a"}, "its first loss"
    assert woken(STATE, after(units={"a": UNIT, "c": UNIT})) == {"r", "b", "c"}
    for name, value in RUN_CHANGES.items():
        assert "r" in woken(STATE, after(**{name: value})), name


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"newest_step": 5, "uri": "gs://b/5"}, id="new"),
        pytest.param({"error": "403"}, id="failed"),
        pytest.param({"current": True}, id="everything-is-saved"),
    ],
)
def test_news_of_checkpoints_is_acted_on_at_once(changes: dict[str, Any]) -> None:
    assert woken(STATE, after(checkpoint=CheckpointReport(**changes))) == {"r"}


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
    for found in (woken(STATE, other), woken(other, STATE)):
        assert found == {"r", "a", "b", "idle"}
    assert woken(after(down="shard 1: no route"), after(down="shard 2: no route")) == {"r"}


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
        state = state.heard(report, second)
        seen.append((state.answers, state.serving_since))
    assert seen == [(True, 1000.0), (True, 1000.0), (True, None), (True, None), (True, 1008.0)]
    again = state.heard(SyncerStatus(run_uid="u", phase="Starting"), 1010.0)
    assert (again.status.global_step, again.status.units, again.serving_since) == (5, {}, None)


def test_several_shards_need_units_until_the_last_one_has_finished() -> None:
    for phase, shards, over in (("Running", 1, False), ("Finishing", 1, True), ("Finished", 1, True)):
        assert after(phase=phase, shards=shards).finishing is over
    assert [after(phase=phase, shards=2).finishing for phase in ("Finishing", "Finished")] == [
        False,
        True,
    ]
